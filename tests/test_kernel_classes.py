"""Kernels get the right class: communication, optimizers, perhaps communication; and gains of kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from certificate_data import CORPUS, needs_traces
from finding_cases import findings, plain
from rank_traces import ALLREDUCE, events, gpu, launch, write_rank
from tiny_trace import slice_, work, write

from molprof import api
from molprof.analysis.documents.ranks import ranks_document

CASES = Path(__file__).parent / "cases"
GEMM = "ampere_bf16_gemm_128x128"
_AT = "at::native::(anonymous namespace)::"
_LISTS = f"void {_AT}multi_tensor_apply_kernel<{_AT}TensorListMetadata<2>, "
NAMES = {
    "collective": (
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
        "mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)",
        "void mscclpp::executionKernel<__half, mscclpp::LL16Packet>(int, __half*, __half*)",
        "void oneccl_allreduce_pcie<half, Rt64_128_PCIE, RingTransmit>",
        "void nvshmemi_reduce_kernel<float, (rdxn_ops)0>(int, int, int, float*, float const*, unsigned long)",
        "void deep_ep::internode_ll::dispatch<3, 10, 7168>(void*, float*, int*, long*, void*, int*)",
        "void deep_ep::internode_ll::combine<3, 10, 7168, 9>(void*, void*, int*, void*)",
        "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>(__nv_bfloat16*, float*)",
        "void primus_turbo::deep_ep::intranode::cached_notify_dispatch<8>(int const*, int)",
        "void dpsk::ep::internode::cached_notify<false>(int, int, int, int, int*)",
        "void dpsk::ep::internode::notify_dispatch<false, 8>(int const*, long*, int)",
        "void hybrid_ep::dispatch_kernel<8>(hybrid_ep::dispatch_kernel_param_t<unsigned char>)",
        "void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>(mori::moe::EpDispatchCombineArgs<hip_bfloat16>)",
        "moeA2ADispatchKernel(int const*, DispatchKernelPointers)",
        "void a2a_combine_recv_kernel<16>(unsigned long, unsigned long)",
        "dlslime::intranode_alltoall_kernel(void*)",
        "kuserbuffers_pushrecv(int, int, int*, int*, int, unsigned long)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 4>(vllm::RankData*, vllm::RankSignals)",
        "void aiter::cross_device_reduce_2stage<__hip_bfloat16, 8>(aiter::RankData*)",
        "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half, CodecQ4<__half, 8>, true>, __half>()",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)",
        "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>(c10::BFloat16**)",
        "void multimem_one_shot_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(flashinfer::AR)1, half>()",
        "void tensorrt_llm::kernels::oneShotAllReduceKernel<__nv_bfloat16, 8, true, false>(AllReduceParams)",
        "void flashinfer::trtllm_mnnvl_allreduce::rmsNormLamport<1, __nv_bfloat16>(__nv_bfloat16*)",
        "void oneshotArFusedNormConstKernel<8, __nv_bfloat16, 1, 6144>(__nv_bfloat16*)",
        "_one_shot_all_reduce_kernel",
        "reduce_scatter_kernel",
    ),
    "optimizer": (
        f"{_LISTS}{_AT}BinaryOpListAlphaFunctor<float, 2, 2, 0>, std::plus<float>, float>()",
        f"{_LISTS}{_AT}LpNormFunctor<float, (at::native::NormType)1, float, 1, 1, 0> >()",
        f"void {_AT}multi_tensor_apply_kernel<{_AT}FusedOptimizerTensorListMetadata<4>, {_AT}FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1, false>, float>()",  # noqa: E501
        f"void {_AT}multi_tensor_apply_kernel<{_AT}FusedOptimizerTensorListMetadata<3>, {_AT}FusedSgdMathFunctor<float, 3>>()",  # noqa: E501
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float, float>(int, int volatile*)",
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, LAMBStage1Functor<float>, float*, float*>(int)",
        f"void at::native::vectorized_elementwise_kernel<4, {_AT}amp_non_finite_check_and_unscale_cuda_(at::Tensor&)::"
        "{lambda(float)#1}, std::array<char*, 2ul> >(int)",
        "at::native::amp_update_scale_cuda_kernel(float*, int*, float const*, double, double, int)",
        "void lamb_cuda_kernel_part1<float, float, 512>(float*, float*)",
        "void kOptimizerStatic8bit2StateBlockwise<__nv_bfloat16, 3, 256, 1>(__nv_bfloat16*, __nv_bfloat16*)",
        "void kPreconditionOptimizer32bit2State<float, 0, 4096, 8>(float*, float*)",
        "_optimizer_update_2state_8bit_blockwise_triton_kernel",
        "_adam_kernel",
    ),
    # Copies of lists of tensors are copies.
    "copy": (
        f"{_LISTS}{_AT}CopyFunctor<float, c10::BFloat16, 2, 1, 1>, at::native::Copy<float, c10::BFloat16> >()",
        f"{_LISTS}{_AT}UnaryOpFunctor<long, 2, 1, 1>, at::native::Copy<long, long> >()",
    ),
    "sort/top-k": ("void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*, int*, int*, int*, bool*)",),
    # What Inductor fuses around a collective exchanges nothing.
    "elementwise": ("triton_poi_fused_add_all_reduce_4", "triton_for_fused_0"),
    "norm": ("triton_red_fused_add_all_reduce_mean_mul_pow_rsqrt_0",),
    "reduce": ("triton_red_fused_all_gather_into_tensor_sum_1",),
    "embedding/rotary": ("triton_poi_fused_add_all_reduce_bitwise_and_embedding_ge_masked_fill_0",),
}


def classes(path: Path) -> dict[str, str]:
    """The class of each kernel by its name."""
    with api.load(path) as trace:
        rows = trace.sql(
            "INCLUDE PERFETTO MODULE molprof.kernel_classes; SELECT name, class FROM molprof_work_class"
        ).rows()
        return dict(rows)


def test_names_tell_classes(tmp_path: Path) -> None:
    expected = {name: work_class for work_class, names in NAMES.items() for name in names}
    trace = [work("kernel", name, 10 * at, 5, at) for at, name in enumerate(expected)]
    assert classes(write(tmp_path / "trace.json", plain(*trace))) == expected


def _called(ts: float, number: int) -> dict[str, Any]:
    return slice_("cuda_runtime", "cudaLaunchKernel", ts, 1, correlation=number)


def test_a_kernel_of_unknown_name_called_inside_a_collective_is_perhaps_communication(tmp_path: Path) -> None:
    trace = plain(
        slice_("cpu_op", "record_param_comms", 0, 10),
        _called(1, 1),
        work("kernel", "strange", 20, 5, 1),
        slice_("user_annotation", "xccl:all_gather", 30, 10),
        slice_("cpu_op", "aten::custom", 31, 8),
        _called(32, 2),
        work("kernel", "odd", 50, 5, 2),
        slice_("cpu_op", "record_param_comms", 60, 10),
        _called(61, 3),
        work("kernel", GEMM, 80, 5, 3),
        _called(90, 4),
        work("kernel", "unknown", 95, 5, 4),
        # Inside a collective once, and twice outside.
        slice_("cpu_op", "record_param_comms", 100, 10),
        *(item for at in (105, 120, 140) for item in (_called(at, at), work("kernel", "seldom", at + 8, 5, at))),
    )
    assert classes(write(tmp_path / "trace.json", trace)) == {
        "strange": "perhaps communication", "odd": "perhaps communication", GEMM: "matmul", "unknown": "other",
        "seldom": "other",
    }  # fmt: skip


def test_a_kernel_of_unknown_name_on_a_stream_of_collectives_is_perhaps_communication(tmp_path: Path) -> None:
    def on(stream: int, *names: str) -> list[dict[str, Any]]:
        return [
            work("kernel", name, 100 * stream + 10 * at, 5, 10 * stream + at, stream) for at, name in enumerate(names)
        ]

    trace = plain(
        on(1, ALLREDUCE, "at::native::direct_copy_kernel", "strange"),
        on(2, ALLREDUCE, GEMM, "beside computing"),
        on(3, "by itself"),
    )
    found = classes(write(tmp_path / "trace.json", trace))
    assert [found[name] for name in ("strange", "beside computing", "by itself")] == [
        "perhaps communication", "other", "other"
    ]  # fmt: skip


def test_communication_that_is_perhaps_none_is_named_as_such(tmp_path: Path) -> None:
    trace = plain(
        work("kernel", GEMM, 0, 100, 1),
        work("kernel", ALLREDUCE, 100, 60, 2, 20),
        work("kernel", "strange", 160, 40, 3, 20),
    )
    found = findings(tmp_path, trace)
    assert found["communication"].evidence.startswith(
        "1 collective and 1 kernel of unknown name (40.0 µs, perhaps communication) take 100 µs, 100 µs of it with "
    )
    assert found["communication"].gain_ratio == pytest.approx(0.5)
    assert found["communication"].figures["perhaps_ns"] == 40_000
    assert "communication 50.0 %" in found["limits"].evidence
    assert "unknown_kernels" not in found


def test_ranks_count_what_is_perhaps_communication_and_name_it(tmp_path: Path) -> None:
    for rank in (0, 1):
        content = [*events(), launch(390, 5), gpu("strange", 400, 50, 5, 20)]
        write_rank(tmp_path / f"{rank}.json", rank, content)
    job = api.ranks([tmp_path])
    assert job.remarks == tuple(
        f"rank {rank}: 1 kernel of unknown name (50.0 µs; strange) count as communication, for they run on a stream of "
        "collectives or are called inside one"
        for rank in (0, 1)
    )
    document = ranks_document(job).json()
    assert [rank["exposed_ns"] for rank in document["ranks"]] == [230_000, 230_000]
    assert all(check["holds"] for check in document["checks"])
    assert {cost["operation"] for cost in document["collectives"]} == {"allreduce"}


def test_a_job_that_sends_tokens_with_deepep() -> None:
    document = ranks_document(api.ranks([CASES / "deepep"])).json()
    ranks = document["ranks"]
    wall_ns = sum(rank["wall_ns"] for rank in ranks)
    shares = {name: sum(rank[f"{name}_ns"] for rank in ranks) / wall_ns for name in ("compute", "exposed", "idle")}
    assert shares == pytest.approx({"compute": 0.434, "exposed": 0.250, "idle": 0.315}, abs=0.001)
    first = ranks[0]
    assert first["hidden_ns"] / (first["hidden_ns"] + first["exposed_ns"]) == pytest.approx(0.434, abs=0.001)
    assert {cost["operation"] for cost in document["collectives"]} == {"dispatch", "combine"}
    assert all(check["holds"] for check in document["checks"])


def test_a_kernel_gains_at_most_what_nothing_else_runs_beside(tmp_path: Path) -> None:
    # 80 of 100 µs, all but 10 of it beside an attention kernel.
    beside = work("kernel", "flash_fwd_kernel", 10, 90, 2, 8)
    found = findings(tmp_path, plain(work("kernel", GEMM, 0, 80, 1), beside))["dominant_kernel"]
    assert found.figures == {"count": 1, "time_ns": 90_000}
    assert found.gain_ratio == pytest.approx(0.2)
    assert "of which a fix saves at most 20.0 µs: the rest overlaps other work" in found.evidence
    # Where nothing else runs, all of it.
    found = findings(tmp_path, plain(work("kernel", GEMM, 0, 80, 1)))["dominant_kernel"]
    assert found.gain_ratio == pytest.approx(1.0)


def test_chains_and_copies_gain_at_most_what_nothing_else_runs_beside(tmp_path: Path) -> None:
    pointwise = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)"
    copy = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(int)>(int)"
    chain = [work("kernel", name, 100 * at, 100, at) for at, name in enumerate((pointwise, pointwise, copy))]
    found = findings(tmp_path, plain(chain))
    assert found["elementwise_chains"].gain_ratio == pytest.approx(2 / 3)
    assert found["copies"].gain_ratio == pytest.approx(1 / 3)
    # The first of equal kernels stays; beside the last half of what goes, a matrix product runs.
    found = findings(tmp_path, plain(chain, work("kernel", GEMM, 200, 100, 9, 8)))
    assert found["elementwise_chains"].gain_ratio == pytest.approx(1 / 3)
    assert "copies" not in found


def test_optimizers_are_no_chains_of_elementwise_kernels(tmp_path: Path) -> None:
    name = NAMES["optimizer"][0]
    trace = plain(*(work("kernel", name, 100 * at, 100, at) for at in range(5)))
    assert "elementwise_chains" not in findings(tmp_path, trace)


@needs_traces
def test_expert_parallel_communication_of_a_real_chunk() -> None:
    report = api.report(Path(str(CORPUS), "more/h800_ep64_dualpipe.json.gz"))
    found = {item.id: item for item in report.findings}
    assert found["communication"].figures["time_ns"] == pytest.approx(113.0e6, rel=1e-3)
    assert found["communication"].figures["exposed_ns"] == pytest.approx(4.15e6, rel=1e-3)
    assert "the largest part, 2.16 ms, in dpsk::ep::internode::combine" in found["communication"].evidence
    assert max(item.gain.high for item in report.findings if item.gain is not None) < 0.04


@needs_traces
def test_optimizer_of_a_real_training() -> None:
    report = api.report(Path(str(CORPUS), "traces/v100_resnet_ddp.json.gz"))
    rows = {row["class"]: row for row in report.table("kernel_classes").to_json()}
    assert (rows["optimizer"]["count"], rows["optimizer"]["time_ns"]) == (45, 5_532_802)
