"""Kernels as torch names them on a CUDA device, by the operator that launches them, with a class and a fixed time."""

from __future__ import annotations

from dataclasses import dataclass

_LOOP = "void at::native::{kind}<{shape}, {body}>(int, {body})"
_HIDDEN = "at::native::(anonymous namespace)::"


@dataclass(frozen=True)
class Kernel:
    """One kernel: its name, the class that molprof must give it, and how long it runs."""

    name: str
    work_class: str
    dur_ns: int


def _vectorized(body: str) -> Kernel:
    name = _LOOP.format(
        kind="vectorized_elementwise_kernel", shape=4, body=f"at::native::{body}, std::array<char*, 3ul>"
    )
    return Kernel(name, "elementwise", 1_700)


def _indexed(body: str, dur_ns: int) -> Kernel:
    return Kernel(
        f"void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<at::native::{body}>>(int)",
        "index/scatter/gather",
        dur_ns,
    )


def _reduced(body: str) -> Kernel:
    op = f"at::native::ReduceOp<float, at::native::{body}, unsigned int, float, 4>"
    return Kernel(f"void at::native::reduce_kernel<512, 1, {op}>({op})", "reduce", 3_100)


COPY = Kernel(
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)"
    "::{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1},"
    " std::array<char*, 2ul>>(int)",
    "copy",
    2_400,
)
LOGITS_COPY = Kernel(COPY.name, "copy", 38_000)
FILL = Kernel(
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul>>(int)",
    "fill",
    1_300,
)
GEMM = Kernel(
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_execute_segment_k_off_kernel__5x_cublas", "matmul", 7_900
)
FLASH = Kernel(
    "void pytorch_flash::flash_fwd_splitkv_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 64, 256, 4, false, false,"
    " cutlass::bfloat16_t>, false, false>(pytorch_flash::Flash_fwd_params)",
    "attention",
    11_200,
)
EFFICIENT = Kernel(
    "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>::Params)",
    "attention",
    18_300,
)
CAT = Kernel(
    f"void {_HIDDEN}CatArrayBatchedCopy<{_HIDDEN}OpaqueType<2u>, unsigned int, 4, 64, 64>({_HIDDEN}OpaqueType<2u>*)",
    "cat",
    2_900,
)
SELECT = Kernel(
    f"void {_HIDDEN}indexSelectSmallIndex<float, long, unsigned int, 2, 2, -2>(at::cuda::detail::TensorInfo<float>)",
    "index/scatter/gather",
    2_200,
)
SCATTER = Kernel(
    "void at::native::_scatter_gather_elementwise_kernel<128, 8,"
    " at::native::_cuda_scatter_gather_internal_kernel<true>>(int)",
    "index/scatter/gather",
    2_600,
)
ARANGE = Kernel(
    "void (anonymous namespace)::elementwise_kernel_with_index<int, at::native::arange_cuda_out(c10::Scalar const&)"
    "::{lambda()#1}>(int)",
    "fill",
    1_500,
)
SOFTMAX = Kernel(
    f"void {_HIDDEN}cunn_SoftMaxForward<4, float, float, float, {_HIDDEN}SoftMaxForwardEpilogue>(float*)",
    "softmax",
    4_300,
)
TOPK = Kernel("void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(float*)", "sort/top-k", 9_700)
SORT = Kernel("void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<float>(float*)", "sort/top-k", 14_000)
MULTINOMIAL = Kernel(f"void {_HIDDEN}sampleMultinomialOnce<float, float>(long*)", "sort/top-k", 3_300)

# Operators that compute on the device. Of operators inside each other the outermost launches, once for each kernel.
KERNELS: dict[str, tuple[Kernel, ...]] = {
    **dict.fromkeys(("aten::mm", "aten::addmm", "aten::bmm"), (GEMM,)),
    "aten::_scaled_dot_product_flash_attention": (FLASH,),
    "aten::_scaled_dot_product_efficient_attention": (EFFICIENT,),
    "aten::copy_": (COPY,),
    "aten::cat": (CAT,),
    **dict.fromkeys(("aten::fill_", "aten::zero_", "aten::full", "aten::scalar_tensor"), (FILL,)),
    "aten::arange": (ARANGE,),
    **dict.fromkeys(("aten::index_select", "aten::embedding", "aten::gather"), (SELECT,)),
    **dict.fromkeys(("aten::scatter_", "aten::index_copy_", "aten::index_add_"), (SCATTER,)),
    "aten::index": (_indexed("index_kernel_impl<OpaqueType>", 2_300),),
    **dict.fromkeys(("aten::index_put_", "aten::index_fill_"), (_indexed("index_put_kernel_impl<OpaqueType>", 2_700),)),
    "aten::masked_fill_": (_vectorized("masked_fill_kernel(at::TensorIterator&, c10::Scalar const&)::{lambda()#1}"),),
    "aten::where": (_vectorized("where_kernel_impl(at::TensorIterator&)::{lambda()#1}"),),
    "aten::masked_fill": (LOGITS_COPY, _vectorized("masked_fill_kernel(at::TensorIterator&)::{lambda()#1}")),
    "aten::softmax": (SOFTMAX,),
    "aten::topk": (TOPK,),
    "aten::sort": (SORT,),
    "aten::multinomial": (MULTINOMIAL,),
    **{f"aten::{name}": (_reduced(f"{name}_ops<float>"),) for name in ("mean", "sum", "any", "all", "max", "argmax")},
    **{
        f"aten::{name}": (_vectorized(f"CUDAFunctor_{name.strip('_')}<float>"),)
        for name in (
            "add", "add_", "sub", "rsub", "mul", "mul_", "div", "div_", "pow", "rsqrt", "neg", "silu", "cos", "sin",
            "eq", "ne", "le", "lt", "ge", "gt", "isin", "bitwise_or", "bitwise_and", "bitwise_not", "__or__", "__and__",
        )
    },
}  # fmt: skip
# Operators that a compiled forward fuses with their neighbours; all others stay kernels of their own.
FUSED = frozenset(("elementwise", "copy", "cat", "fill", "reduce", "index/scatter/gather"))


def triton(number: int, parts: list[Kernel]) -> Kernel:
    """What Inductor makes of these neighbours: a norm where a mean is among them, else one elementwise kernel."""
    if any(part.work_class == "reduce" for part in parts):
        return Kernel(f"triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_{number}", "norm", 3_600)
    return Kernel(f"triton_poi_fused_add_cat_mul_neg_{number}", "elementwise", 2_100)
