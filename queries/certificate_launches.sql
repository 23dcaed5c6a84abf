-- Launches whose GPU work is not recorded, and GPU work whose call is not recorded.
--
-- A launch inside a stream capture runs nothing: it becomes a node of a graph.
--
-- Example:
--   SELECT position, launches, first_ts, last_ts
--   FROM molprof_missing_work
--   ORDER BY first_ts;

INCLUDE PERFETTO MODULE molprof.gpu_calls;

-- Launches that start a kernel at once, in order of start. Graph launches are in molprof.certificate_graphs.
CREATE PERFETTO VIEW molprof_certified_launch(
  -- The call's slice.
  id JOINID(slice.id),
  -- Start of the call, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Whether GPU work of its rank with its correlation number is recorded: 1 or 0.
  has_work LONG
) AS
SELECT
  id,
  ts,
  id NOT IN (SELECT id FROM _molprof_fact_lost_launch) AS has_work
FROM _molprof_launch_call
WHERE
  id NOT IN (SELECT id FROM _molprof_fact_unnumbered_launch)
  AND id NOT IN (SELECT id FROM _molprof_fact_captured_launch)
ORDER BY ts, id;

-- Launches without GPU work by position, in order of start.
CREATE PERFETTO VIEW molprof_missing_work(
  -- start: before the first launch that has work; end: after the last one; middle: between them; all: none has work.
  position STRING,
  -- Launches.
  launches LONG,
  -- Of these, launches in steps of molprof.steps.
  in_steps LONG,
  -- Start of the first of them, ns since the trace's earliest event.
  first_ts TIMESTAMP,
  -- Start of the last of them, ns since the trace's earliest event.
  last_ts TIMESTAMP
) AS
SELECT
  position,
  launches,
  in_steps,
  first_ts,
  last_ts
FROM _molprof_fact_missing_work
ORDER BY first_ts, position;

-- GPU work without a call of its rank and correlation number, by position.
CREATE PERFETTO VIEW molprof_missing_call(
  -- start: its number is below that of any recorded call, so it was launched before the recording; later: its number is
  -- not; all: no GPU work has a call; unnumbered: it has no number.
  position STRING,
  -- Kernels.
  kernels LONG,
  -- Distinct correlation numbers of kernels, copies and sets: the calls that lack.
  calls LONG,
  -- Sum of the times of kernels, ns.
  kernel_time_ns DURATION,
  -- Start of the first, ns since the trace's earliest event.
  first_ts TIMESTAMP
) AS
SELECT
  position,
  kernels,
  calls,
  kernel_time_ns,
  first_ts
FROM _molprof_fact_missing_call
ORDER BY first_ts, position;

-- Launches of one kernel that have several pieces of GPU work, by name: such work is recorded twice, or has a wrong number.
CREATE PERFETTO VIEW molprof_launch_of_several(
  -- Name of the runtime or driver function.
  name STRING,
  -- Launches.
  launches LONG,
  -- Kernels, copies and sets beyond one for each of them.
  more_work LONG
) AS
SELECT
  name,
  launches,
  more_work
FROM _molprof_fact_launch_of_several
ORDER BY name;

-- Correlation numbers that calls which follow each other share: it is not sure which of them started the work.
CREATE PERFETTO VIEW molprof_number_of_several(
  -- Rank; null unless the trace is of several ranks.
  rank LONG,
  -- Correlation number.
  correlation LONG,
  -- Calls with it.
  calls LONG
) AS
SELECT
  rank,
  correlation,
  calls
FROM _molprof_fact_shared_number
WHERE follow
ORDER BY rank, correlation;
