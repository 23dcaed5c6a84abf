-- Collectives: kernels of NCCL, RCCL, DeepEP and the like, in which ranks exchange data.
--
-- What a kernel does is in its args, where torch recorded them, else in its name; NCCL's SendRecv is whatever the annotation
-- around its launch says (nccl:all_to_all). Sizes are in its args, else in that annotation, which older versions of torch
-- give shapes.
--
-- Example:
--   SELECT rank, operation, group_name, dtype, bytes, COUNT() AS count, SUM(dur) AS time_ns
--   FROM molprof_collective
--   GROUP BY rank, operation, group_name, dtype, bytes
--   ORDER BY time_ns DESC, rank, operation, group_name, dtype, bytes;

INCLUDE PERFETTO MODULE molprof.annotations;
INCLUDE PERFETTO MODULE molprof.gpu_work;
INCLUDE PERFETTO MODULE molprof.kernel_classes;

-- Kernels that are collectives by their name or by their args, or perhaps by where they run.
CREATE PERFETTO TABLE _molprof_collective_kernel AS
WITH
  -- Names and sets of args are few, where kernels are many.
  found AS (
    SELECT work.id, slice.arg_set_id, IFNULL(slice.name, '(no name)') AS name
    FROM _molprof_work AS work
    CROSS JOIN slice
    WHERE
      slice.id = work.id
      AND work.category = 'kernel'
      AND (
        slice.name IN (
          SELECT name
          FROM molprof_work_class
          WHERE category = 'kernel' AND class IN ('collective', 'perhaps communication')
        )
        OR slice.arg_set_id IN (SELECT arg_set_id FROM args WHERE key = 'args.Collective name')
      )
  )
SELECT
  work.id,
  CAST(
    COALESCE(
      EXTRACT_ARG(work.arg_set_id, 'args.Collective name'),
      IIF(
        work.name GLOB '*SendRecv*',
        (
          SELECT annotation.name
          FROM _molprof_work AS launched
          JOIN ancestor_slice(launched.call_id) AS annotation
          WHERE launched.id = work.id AND annotation.name GLOB '*ccl:*'
          ORDER BY annotation.depth DESC
          LIMIT 1
        ),
        NULL
      ),
      IIF(class.class = 'collective', work.name, 'perhaps')
    ) AS TEXT
  ) AS called,
  CAST(EXTRACT_ARG(work.arg_set_id, 'args.Process Group Name') AS TEXT) AS group_name,
  CAST(EXTRACT_ARG(work.arg_set_id, 'args.Process Group Ranks') AS TEXT) AS group_ranks,
  CAST(EXTRACT_ARG(work.arg_set_id, 'args.Group size') AS INT) AS group_size,
  CAST(EXTRACT_ARG(work.arg_set_id, 'args.Seq') AS INT) AS sequence,
  CAST(EXTRACT_ARG(work.arg_set_id, 'args.dtype') AS TEXT) AS dtype,
  MAX(
    CAST(EXTRACT_ARG(work.arg_set_id, 'args.In msg nelems') AS INT),
    CAST(EXTRACT_ARG(work.arg_set_id, 'args.Out msg nelems') AS INT)
  ) AS elements
FROM found AS work
JOIN molprof_work_class AS class ON class.category = 'kernel' AND class.name = work.name
ORDER BY work.id;

-- Elements of the tensors of annotations that enclose collectives; null for several with a shape that is not recorded.
CREATE PERFETTO TABLE _molprof_annotation_size AS
WITH
  -- A key is args.Input Dims[tensor][dimension]; as molprof reads traces for figures, args.Input Dims.tensor.dimension.
  dimension AS (
    SELECT
      annotation.id,
      CAST(SUBSTR(args.key, 17) AS INT) AS tensor,
      CAST(LTRIM(LTRIM(SUBSTR(args.key, 17), '0123456789'), '].[') AS INT) AS number,
      args.int_value AS length
    FROM molprof_annotation AS annotation
    JOIN slice USING (id)
    JOIN args USING (arg_set_id)
    WHERE annotation.name GLOB '*ccl:*' AND args.key GLOB 'args.Input Dims[[.][0-9]*[[.][0-9]*'
  ),
  -- SQL has no product. Tensors have at most 8 dimensions here.
  tensor AS (
    SELECT
      id,
      tensor,
      IIF(
        MAX(number) < 8,
        IFNULL(MAX(length) FILTER (WHERE number = 0), 1)
        * IFNULL(MAX(length) FILTER (WHERE number = 1), 1)
        * IFNULL(MAX(length) FILTER (WHERE number = 2), 1)
        * IFNULL(MAX(length) FILTER (WHERE number = 3), 1)
        * IFNULL(MAX(length) FILTER (WHERE number = 4), 1)
        * IFNULL(MAX(length) FILTER (WHERE number = 5), 1)
        * IFNULL(MAX(length) FILTER (WHERE number = 6), 1)
        * IFNULL(MAX(length) FILTER (WHERE number = 7), 1),
        NULL
      ) AS elements
    FROM dimension
    GROUP BY id, tensor
  )
SELECT
  tensor.id,
  IIF(
    COUNT(tensor.elements) = (
      SELECT COUNT()
      FROM args
      WHERE args.arg_set_id = slice.arg_set_id AND args.key GLOB 'args.Input type[[.]*'
    ),
    SUM(tensor.elements),
    NULL
  ) AS elements
FROM tensor
JOIN slice USING (id)
GROUP BY tensor.id
ORDER BY tensor.id;

-- The innermost annotation with a size that encloses each collective's launch.
CREATE PERFETTO TABLE _molprof_collective_size AS
SELECT
  kernel.id,
  size.elements,
  COALESCE(
    EXTRACT_ARG(annotation.arg_set_id, 'args.Input type[0]'),
    EXTRACT_ARG(annotation.arg_set_id, 'args.Input type.0')
  ) AS dtype,
  MAX(annotation.depth) AS depth
FROM _molprof_collective_kernel AS kernel
JOIN _molprof_work AS work USING (id)
JOIN ancestor_slice(work.call_id) AS annotation
JOIN _molprof_annotation_size AS size ON size.id = annotation.id
WHERE kernel.elements IS NULL AND work.call_id IS NOT NULL
GROUP BY kernel.id
ORDER BY kernel.id;

-- One row per collective kernel, in order of start.
CREATE PERFETTO TABLE molprof_collective(
  -- The kernel.
  id JOINID(slice.id),
  -- Rank; null unless the trace is of several ranks.
  rank LONG,
  -- Device, as in molprof.gpu_work.
  device STRING,
  -- Stream number; null where not recorded.
  stream LONG,
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Time on the device, ns: waiting for other ranks and moving data.
  dur DURATION,
  -- Name of the kernel.
  name STRING,
  -- allreduce, allgather, reducescatter, alltoall, broadcast, sendrecv, send, recv, reduce, gather, scatter, barrier;
  -- dispatch, combine (of tokens to experts) and notify, which prepares them; perhaps: of the class perhaps
  -- communication; or other.
  operation STRING,
  -- Name of the process group; null where not recorded.
  group_name STRING,
  -- Ranks of the process group as a list in text, which torch cuts after 30; null where not recorded.
  group_ranks STRING,
  -- Number of ranks in the process group; null where not recorded.
  group_size LONG,
  -- Number of the collective in its process group; null where not recorded.
  sequence LONG,
  -- Type of the elements; null where not recorded.
  dtype STRING,
  -- Elements of the larger of the tensors that go in and come out; null where not recorded.
  elements LONG,
  -- Bytes of these elements; null where not recorded, or of a type whose size is not known here.
  bytes LONG
) AS
WITH
  sized AS (
    SELECT
      kernel.id,
      LOWER(REPLACE(kernel.called, '_', '')) AS called,
      kernel.group_name,
      kernel.group_ranks,
      kernel.group_size,
      kernel.sequence,
      IFNULL(kernel.dtype, size.dtype) AS dtype,
      kernel.elements AS own_elements,
      size.elements AS input_elements
    FROM _molprof_collective_kernel AS kernel
    LEFT JOIN _molprof_collective_size AS size ON size.id = kernel.id
  ),
  classified AS (
    SELECT
      *,
      CASE
        WHEN called GLOB '*allreduce*' OR called GLOB '*crossdevicereduce*' THEN 'allreduce'
        WHEN called GLOB '*allgather*' THEN 'allgather'
        WHEN called GLOB '*reducescatter*' THEN 'reducescatter'
        WHEN called GLOB '*alltoall*' THEN 'alltoall'
        WHEN called = 'perhaps' THEN 'perhaps'
        WHEN called GLOB '*notify*' THEN 'notify'
        WHEN called GLOB '*dispatch*' THEN 'dispatch'
        WHEN called GLOB '*combine*' THEN 'combine'
        WHEN called GLOB '*broadcast*' THEN 'broadcast'
        WHEN called GLOB '*sendrecv*' THEN 'sendrecv'
        WHEN called GLOB '*send*' THEN 'send'
        WHEN called GLOB '*recv*' THEN 'recv'
        WHEN called GLOB '*barrier*' THEN 'barrier'
        WHEN called GLOB '*reduce*' THEN 'reduce'
        WHEN called GLOB '*gather*' THEN 'gather'
        WHEN called GLOB '*scatter*' THEN 'scatter'
        ELSE 'other'
      END AS operation
    FROM sized
  ),
  chosen AS (
    SELECT
      *,
      -- An annotation shows what goes in, which is all of it in these only.
      IFNULL(own_elements, IIF(operation IN ('allreduce', 'broadcast', 'reduce'), input_elements, NULL)) AS size
    FROM classified
  ),
  -- A size that cannot be is none.
  counted AS (
    SELECT
      *,
      IIF(TYPEOF(size) = 'integer' AND size BETWEEN 0 AND 1 << 50, size, NULL) AS elements,
      REPLACE(LOWER(dtype), 'c10::', '') AS type
    FROM chosen
  )
SELECT
  counted.id,
  work.rank,
  work.device,
  work.stream,
  work.ts,
  work.dur,
  work.name,
  counted.operation,
  counted.group_name,
  counted.group_ranks,
  IIF(counted.group_size > 0, counted.group_size, NULL) AS group_size,
  counted.sequence,
  counted.dtype,
  counted.elements,
  counted.elements * CASE
    WHEN counted.type IN ('half', 'bfloat16', 'short', 'int16', 'float16') THEN 2
    WHEN counted.type IN ('float', 'int', 'int32', 'float32') THEN 4
    WHEN counted.type IN ('double', 'long', 'int64', 'long int', 'float64') THEN 8
    WHEN counted.type GLOB 'float8*'
    OR counted.type IN ('byte', 'char', 'bool', 'int8', 'uint8', 'unsigned char') THEN 1
  END AS bytes
FROM counted
JOIN molprof_gpu_work AS work ON work.id = counted.id
ORDER BY counted.id;
