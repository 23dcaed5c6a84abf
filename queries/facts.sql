-- The facts that molprof computes of a trace, as tables that the other modules read: from a file of `molprof export`.
--
-- Made from TABLES of analysis/facts/tables/, which a test compares. molprof itself makes the tables without it.

-- Fails where there are no facts: tables without rows would look like a trace in which nothing happened.
CREATE PERFETTO TABLE _molprof_facts_are_there AS
SELECT
  IIF(
    EXISTS(SELECT 1 FROM slice WHERE category = 'molprof.fact'),
    1,
    json_extract('[]', 'this trace has no facts: write one that has them with molprof export')
  ) AS are_there;

CREATE PERFETTO TABLE _molprof_fact AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.fact') AS fact,
  arg_set_id
FROM slice
WHERE category = 'molprof.fact'
ORDER BY id;

CREATE PERFETTO TABLE _molprof_fact_repeated_call(
  id JOINID(slice.id)
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.id') AS id
FROM _molprof_fact
WHERE fact = 'repeated_call';

CREATE PERFETTO TABLE _molprof_fact_work(
  id JOINID(slice.id),
  call_id JOINID(slice.id)
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.id') AS id,
  EXTRACT_ARG(arg_set_id, 'args.call_id') AS call_id
FROM _molprof_fact
WHERE fact = 'work';

CREATE PERFETTO TABLE _molprof_fact_launch_total(
  name STRING,
  kind STRING,
  count LONG,
  time_ns DURATION,
  starting LONG,
  kernels LONG,
  mean_delay_ns DOUBLE
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.name') AS name,
  EXTRACT_ARG(arg_set_id, 'args.kind') AS kind,
  EXTRACT_ARG(arg_set_id, 'args.count') AS count,
  EXTRACT_ARG(arg_set_id, 'args.time_ns') AS time_ns,
  EXTRACT_ARG(arg_set_id, 'args.starting') AS starting,
  EXTRACT_ARG(arg_set_id, 'args.kernels') AS kernels,
  EXTRACT_ARG(arg_set_id, 'args.mean_delay_ns') AS mean_delay_ns
FROM _molprof_fact
WHERE fact = 'launch_total';

CREATE PERFETTO TABLE _molprof_fact_launch_count(
  launches LONG,
  graph_launches LONG,
  kernels LONG,
  kernel_time_ns DURATION,
  kernel_names LONG,
  launches_without_gpu_work LONG,
  kernels_with_call LONG,
  kernels_without_call LONG
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.launches') AS launches,
  EXTRACT_ARG(arg_set_id, 'args.graph_launches') AS graph_launches,
  EXTRACT_ARG(arg_set_id, 'args.kernels') AS kernels,
  EXTRACT_ARG(arg_set_id, 'args.kernel_time_ns') AS kernel_time_ns,
  EXTRACT_ARG(arg_set_id, 'args.kernel_names') AS kernel_names,
  EXTRACT_ARG(arg_set_id, 'args.launches_without_gpu_work') AS launches_without_gpu_work,
  EXTRACT_ARG(arg_set_id, 'args.kernels_with_call') AS kernels_with_call,
  EXTRACT_ARG(arg_set_id, 'args.kernels_without_call') AS kernels_without_call
FROM _molprof_fact
WHERE fact = 'launch_count';

CREATE PERFETTO TABLE _molprof_fact_launch_of_several(
  name STRING,
  launches LONG,
  more_work LONG
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.name') AS name,
  EXTRACT_ARG(arg_set_id, 'args.launches') AS launches,
  EXTRACT_ARG(arg_set_id, 'args.more_work') AS more_work
FROM _molprof_fact
WHERE fact = 'launch_of_several';

CREATE PERFETTO TABLE _molprof_fact_shared_number(
  rank LONG,
  correlation LONG,
  calls LONG,
  follow LONG,
  is_ambiguous LONG
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.rank') AS rank,
  EXTRACT_ARG(arg_set_id, 'args.correlation') AS correlation,
  EXTRACT_ARG(arg_set_id, 'args.calls') AS calls,
  EXTRACT_ARG(arg_set_id, 'args.follow') AS follow,
  EXTRACT_ARG(arg_set_id, 'args.is_ambiguous') AS is_ambiguous
FROM _molprof_fact
WHERE fact = 'shared_number';

CREATE PERFETTO TABLE _molprof_fact_unnumbered_launch(
  id JOINID(slice.id)
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.id') AS id
FROM _molprof_fact
WHERE fact = 'unnumbered_launch';

CREATE PERFETTO TABLE _molprof_fact_graph_launch(
  id JOINID(slice.id)
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.id') AS id
FROM _molprof_fact
WHERE fact = 'graph_launch';

CREATE PERFETTO TABLE _molprof_fact_launch_phase(
  id JOINID(slice.id),
  phase_id JOINID(slice.id)
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.id') AS id,
  EXTRACT_ARG(arg_set_id, 'args.phase_id') AS phase_id
FROM _molprof_fact
WHERE fact = 'launch_phase';

CREATE PERFETTO TABLE _molprof_fact_host_sync(
  id JOINID(slice.id),
  phase_id JOINID(slice.id)
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.id') AS id,
  EXTRACT_ARG(arg_set_id, 'args.phase_id') AS phase_id
FROM _molprof_fact
WHERE fact = 'host_sync';

CREATE PERFETTO TABLE _molprof_fact_host_total(
  category STRING,
  name STRING,
  count LONG,
  time_ns DURATION
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.category') AS category,
  EXTRACT_ARG(arg_set_id, 'args.name') AS name,
  EXTRACT_ARG(arg_set_id, 'args.count') AS count,
  EXTRACT_ARG(arg_set_id, 'args.time_ns') AS time_ns
FROM _molprof_fact
WHERE fact = 'host_total';

CREATE PERFETTO TABLE _molprof_fact_recorded(
  rank LONG,
  ts TIMESTAMP,
  ts_end TIMESTAMP
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.rank') AS rank,
  EXTRACT_ARG(arg_set_id, 'args.ts') AS ts,
  EXTRACT_ARG(arg_set_id, 'args.ts_end') AS ts_end
FROM _molprof_fact
WHERE fact = 'recorded';

CREATE PERFETTO TABLE _molprof_fact_device(
  device STRING,
  span_ns DURATION,
  busy_ns DURATION,
  idle_ns DURATION,
  count LONG
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.device') AS device,
  EXTRACT_ARG(arg_set_id, 'args.span_ns') AS span_ns,
  EXTRACT_ARG(arg_set_id, 'args.busy_ns') AS busy_ns,
  EXTRACT_ARG(arg_set_id, 'args.idle_ns') AS idle_ns,
  EXTRACT_ARG(arg_set_id, 'args.count') AS count
FROM _molprof_fact
WHERE fact = 'device';

CREATE PERFETTO TABLE _molprof_fact_device_gap(
  device STRING,
  ts TIMESTAMP,
  ts_end TIMESTAMP
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.device') AS device,
  EXTRACT_ARG(arg_set_id, 'args.ts') AS ts,
  EXTRACT_ARG(arg_set_id, 'args.ts_end') AS ts_end
FROM _molprof_fact
WHERE fact = 'device_gap';

CREATE PERFETTO TABLE _molprof_fact_device_work(
  id JOINID(slice.id),
  busy_until TIMESTAMP
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.id') AS id,
  EXTRACT_ARG(arg_set_id, 'args.busy_until') AS busy_until
FROM _molprof_fact
WHERE fact = 'device_work';

CREATE PERFETTO TABLE _molprof_fact_idle_sum(
  device STRING,
  position STRING,
  is_long LONG,
  cause STRING,
  count LONG,
  time_ns DURATION,
  longest_ns DURATION
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.device') AS device,
  EXTRACT_ARG(arg_set_id, 'args.position') AS position,
  EXTRACT_ARG(arg_set_id, 'args.is_long') AS is_long,
  EXTRACT_ARG(arg_set_id, 'args.cause') AS cause,
  EXTRACT_ARG(arg_set_id, 'args.count') AS count,
  EXTRACT_ARG(arg_set_id, 'args.time_ns') AS time_ns,
  EXTRACT_ARG(arg_set_id, 'args.longest_ns') AS longest_ns
FROM _molprof_fact
WHERE fact = 'idle_sum';

CREATE PERFETTO TABLE _molprof_fact_idle_gap(
  id LONG,
  device STRING,
  position STRING,
  ts TIMESTAMP,
  ts_end TIMESTAMP,
  next_id JOINID(slice.id),
  cause STRING
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.id') AS id,
  EXTRACT_ARG(arg_set_id, 'args.device') AS device,
  EXTRACT_ARG(arg_set_id, 'args.position') AS position,
  EXTRACT_ARG(arg_set_id, 'args.ts') AS ts,
  EXTRACT_ARG(arg_set_id, 'args.ts_end') AS ts_end,
  EXTRACT_ARG(arg_set_id, 'args.next_id') AS next_id,
  EXTRACT_ARG(arg_set_id, 'args.cause') AS cause
FROM _molprof_fact
WHERE fact = 'idle_gap';

CREATE PERFETTO TABLE _molprof_fact_concurrency(
  device STRING,
  running LONG,
  time_ns DURATION
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.device') AS device,
  EXTRACT_ARG(arg_set_id, 'args.running') AS running,
  EXTRACT_ARG(arg_set_id, 'args.time_ns') AS time_ns
FROM _molprof_fact
WHERE fact = 'concurrency';

CREATE PERFETTO TABLE _molprof_fact_stream(
  device STRING,
  stream LONG,
  count LONG,
  kernels LONG,
  time_ns DURATION,
  span_ns DURATION,
  overlaps LONG,
  overlap_ns DURATION,
  longest_ns DURATION
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.device') AS device,
  EXTRACT_ARG(arg_set_id, 'args.stream') AS stream,
  EXTRACT_ARG(arg_set_id, 'args.count') AS count,
  EXTRACT_ARG(arg_set_id, 'args.kernels') AS kernels,
  EXTRACT_ARG(arg_set_id, 'args.time_ns') AS time_ns,
  EXTRACT_ARG(arg_set_id, 'args.span_ns') AS span_ns,
  EXTRACT_ARG(arg_set_id, 'args.overlaps') AS overlaps,
  EXTRACT_ARG(arg_set_id, 'args.overlap_ns') AS overlap_ns,
  EXTRACT_ARG(arg_set_id, 'args.longest_ns') AS longest_ns
FROM _molprof_fact
WHERE fact = 'stream';

CREATE PERFETTO TABLE _molprof_fact_rank_device(
  rank LONG,
  device STRING,
  span_ns DURATION,
  busy_ns DURATION,
  compute_ns DURATION,
  communication_ns DURATION,
  kernels LONG,
  kernel_time_ns DURATION,
  kernels_without_call LONG,
  collectives LONG
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.rank') AS rank,
  EXTRACT_ARG(arg_set_id, 'args.device') AS device,
  EXTRACT_ARG(arg_set_id, 'args.span_ns') AS span_ns,
  EXTRACT_ARG(arg_set_id, 'args.busy_ns') AS busy_ns,
  EXTRACT_ARG(arg_set_id, 'args.compute_ns') AS compute_ns,
  EXTRACT_ARG(arg_set_id, 'args.communication_ns') AS communication_ns,
  EXTRACT_ARG(arg_set_id, 'args.kernels') AS kernels,
  EXTRACT_ARG(arg_set_id, 'args.kernel_time_ns') AS kernel_time_ns,
  EXTRACT_ARG(arg_set_id, 'args.kernels_without_call') AS kernels_without_call,
  EXTRACT_ARG(arg_set_id, 'args.collectives') AS collectives
FROM _molprof_fact
WHERE fact = 'rank_device';

CREATE PERFETTO TABLE _molprof_fact_phase_bound(
  phase_id JOINID(slice.id),
  idle_ns DURATION,
  sync_idle_ns DURATION
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.phase_id') AS phase_id,
  EXTRACT_ARG(arg_set_id, 'args.idle_ns') AS idle_ns,
  EXTRACT_ARG(arg_set_id, 'args.sync_idle_ns') AS sync_idle_ns
FROM _molprof_fact
WHERE fact = 'phase_bound';

CREATE PERFETTO TABLE _molprof_fact_overrun(
  id JOINID(slice.id),
  dur DURATION,
  recorded_ns DURATION
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.id') AS id,
  EXTRACT_ARG(arg_set_id, 'args.dur') AS dur,
  EXTRACT_ARG(arg_set_id, 'args.recorded_ns') AS recorded_ns
FROM _molprof_fact
WHERE fact = 'overrun';

CREATE PERFETTO TABLE _molprof_fact_work_total(
  name_id LONG,
  category STRING,
  name STRING,
  count LONG,
  time_ns DURATION,
  first_id JOINID(slice.id)
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.name_id') AS name_id,
  EXTRACT_ARG(arg_set_id, 'args.category') AS category,
  EXTRACT_ARG(arg_set_id, 'args.name') AS name,
  EXTRACT_ARG(arg_set_id, 'args.count') AS count,
  EXTRACT_ARG(arg_set_id, 'args.time_ns') AS time_ns,
  EXTRACT_ARG(arg_set_id, 'args.first_id') AS first_id
FROM _molprof_fact
WHERE fact = 'work_total';

CREATE PERFETTO TABLE _molprof_fact_work_class(
  name_id LONG,
  class STRING
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.name_id') AS name_id,
  EXTRACT_ARG(arg_set_id, 'args.class') AS class
FROM _molprof_fact
WHERE fact = 'work_class';

CREATE PERFETTO TABLE _molprof_fact_exposed_name(
  name_id LONG,
  class STRING,
  count LONG,
  time_ns DURATION,
  busy_ns DURATION,
  exposed_ns DURATION
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.name_id') AS name_id,
  EXTRACT_ARG(arg_set_id, 'args.class') AS class,
  EXTRACT_ARG(arg_set_id, 'args.count') AS count,
  EXTRACT_ARG(arg_set_id, 'args.time_ns') AS time_ns,
  EXTRACT_ARG(arg_set_id, 'args.busy_ns') AS busy_ns,
  EXTRACT_ARG(arg_set_id, 'args.exposed_ns') AS exposed_ns
FROM _molprof_fact
WHERE fact = 'exposed_name';

CREATE PERFETTO TABLE _molprof_fact_exposed_class(
  class STRING,
  count LONG,
  time_ns DURATION,
  busy_ns DURATION,
  exposed_ns DURATION
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.class') AS class,
  EXTRACT_ARG(arg_set_id, 'args.count') AS count,
  EXTRACT_ARG(arg_set_id, 'args.time_ns') AS time_ns,
  EXTRACT_ARG(arg_set_id, 'args.busy_ns') AS busy_ns,
  EXTRACT_ARG(arg_set_id, 'args.exposed_ns') AS exposed_ns
FROM _molprof_fact
WHERE fact = 'exposed_class';

CREATE PERFETTO TABLE _molprof_fact_exposed_phase(
  phase STRING,
  count LONG,
  time_ns DURATION,
  busy_ns DURATION,
  exposed_ns DURATION
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.phase') AS phase,
  EXTRACT_ARG(arg_set_id, 'args.count') AS count,
  EXTRACT_ARG(arg_set_id, 'args.time_ns') AS time_ns,
  EXTRACT_ARG(arg_set_id, 'args.busy_ns') AS busy_ns,
  EXTRACT_ARG(arg_set_id, 'args.exposed_ns') AS exposed_ns
FROM _molprof_fact
WHERE fact = 'exposed_phase';

CREATE PERFETTO TABLE _molprof_fact_class_overlap(
  class STRING,
  other_class STRING,
  time_ns DURATION
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.class') AS class,
  EXTRACT_ARG(arg_set_id, 'args.other_class') AS other_class,
  EXTRACT_ARG(arg_set_id, 'args.time_ns') AS time_ns
FROM _molprof_fact
WHERE fact = 'class_overlap';

CREATE PERFETTO TABLE _molprof_fact_chain(
  chain STRING,
  id JOINID(slice.id),
  ts TIMESTAMP,
  kernels LONG,
  time_ns DURATION,
  saved_ns DURATION
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.chain') AS chain,
  EXTRACT_ARG(arg_set_id, 'args.id') AS id,
  EXTRACT_ARG(arg_set_id, 'args.ts') AS ts,
  EXTRACT_ARG(arg_set_id, 'args.kernels') AS kernels,
  EXTRACT_ARG(arg_set_id, 'args.time_ns') AS time_ns,
  EXTRACT_ARG(arg_set_id, 'args.saved_ns') AS saved_ns
FROM _molprof_fact
WHERE fact = 'chain';

CREATE PERFETTO TABLE _molprof_fact_chain_sum(
  chain STRING,
  count LONG,
  time_ns DURATION,
  saved_ns DURATION
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.chain') AS chain,
  EXTRACT_ARG(arg_set_id, 'args.count') AS count,
  EXTRACT_ARG(arg_set_id, 'args.time_ns') AS time_ns,
  EXTRACT_ARG(arg_set_id, 'args.saved_ns') AS saved_ns
FROM _molprof_fact
WHERE fact = 'chain_sum';

CREATE PERFETTO TABLE _molprof_fact_fused_sum(
  chain STRING,
  count LONG,
  time_ns DURATION
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.chain') AS chain,
  EXTRACT_ARG(arg_set_id, 'args.count') AS count,
  EXTRACT_ARG(arg_set_id, 'args.time_ns') AS time_ns
FROM _molprof_fact
WHERE fact = 'fused_sum';

CREATE PERFETTO TABLE _molprof_fact_work_outside_steps(
  name_id LONG,
  count LONG,
  time_ns DURATION
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.name_id') AS name_id,
  EXTRACT_ARG(arg_set_id, 'args.count') AS count,
  EXTRACT_ARG(arg_set_id, 'args.time_ns') AS time_ns
FROM _molprof_fact
WHERE fact = 'work_outside_steps';

CREATE PERFETTO TABLE _molprof_fact_launch(
  id JOINID(slice.id),
  device STRING,
  kernels LONG,
  delay DURATION,
  queue_depth LONG
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.id') AS id,
  EXTRACT_ARG(arg_set_id, 'args.device') AS device,
  EXTRACT_ARG(arg_set_id, 'args.kernels') AS kernels,
  EXTRACT_ARG(arg_set_id, 'args.delay') AS delay,
  EXTRACT_ARG(arg_set_id, 'args.queue_depth') AS queue_depth
FROM _molprof_fact
WHERE fact = 'launch';

CREATE PERFETTO TABLE _molprof_fact_call_location(
  location_id JOINID(slice.id),
  operator STRING,
  annotation STRING,
  source STRING,
  module STRING
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.location_id') AS location_id,
  EXTRACT_ARG(arg_set_id, 'args.operator') AS operator,
  EXTRACT_ARG(arg_set_id, 'args.annotation') AS annotation,
  EXTRACT_ARG(arg_set_id, 'args.source') AS source,
  EXTRACT_ARG(arg_set_id, 'args.module') AS module
FROM _molprof_fact
WHERE fact = 'call_location';

CREATE PERFETTO TABLE _molprof_fact_launched_work(
  location_id JOINID(slice.id),
  class STRING,
  count LONG,
  time_ns DURATION
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.location_id') AS location_id,
  EXTRACT_ARG(arg_set_id, 'args.class') AS class,
  EXTRACT_ARG(arg_set_id, 'args.count') AS count,
  EXTRACT_ARG(arg_set_id, 'args.time_ns') AS time_ns
FROM _molprof_fact
WHERE fact = 'launched_work';

CREATE PERFETTO TABLE _molprof_fact_idle_location(
  location_id JOINID(slice.id),
  count LONG,
  time_ns DURATION,
  is_shown LONG,
  operator STRING,
  annotation STRING,
  source STRING,
  module STRING
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.location_id') AS location_id,
  EXTRACT_ARG(arg_set_id, 'args.count') AS count,
  EXTRACT_ARG(arg_set_id, 'args.time_ns') AS time_ns,
  EXTRACT_ARG(arg_set_id, 'args.is_shown') AS is_shown,
  EXTRACT_ARG(arg_set_id, 'args.operator') AS operator,
  EXTRACT_ARG(arg_set_id, 'args.annotation') AS annotation,
  EXTRACT_ARG(arg_set_id, 'args.source') AS source,
  EXTRACT_ARG(arg_set_id, 'args.module') AS module
FROM _molprof_fact
WHERE fact = 'idle_location';

CREATE PERFETTO TABLE _molprof_fact_step(
  id JOINID(slice.id),
  ts TIMESTAMP,
  dur DURATION,
  is_whole LONG,
  rank LONG,
  kind STRING
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.id') AS id,
  EXTRACT_ARG(arg_set_id, 'args.ts') AS ts,
  EXTRACT_ARG(arg_set_id, 'args.dur') AS dur,
  EXTRACT_ARG(arg_set_id, 'args.is_whole') AS is_whole,
  EXTRACT_ARG(arg_set_id, 'args.rank') AS rank,
  EXTRACT_ARG(arg_set_id, 'args.kind') AS kind
FROM _molprof_fact
WHERE fact = 'step';

CREATE PERFETTO TABLE _molprof_fact_open_step(
  id JOINID(slice.id),
  ts TIMESTAMP,
  ts_end TIMESTAMP,
  upid JOINID(process.id),
  tid LONG
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.id') AS id,
  EXTRACT_ARG(arg_set_id, 'args.ts') AS ts,
  EXTRACT_ARG(arg_set_id, 'args.ts_end') AS ts_end,
  EXTRACT_ARG(arg_set_id, 'args.upid') AS upid,
  EXTRACT_ARG(arg_set_id, 'args.tid') AS tid
FROM _molprof_fact
WHERE fact = 'open_step';

CREATE PERFETTO TABLE _molprof_fact_step_span(
  step_id JOINID(slice.id),
  ts TIMESTAMP,
  ts_end TIMESTAMP
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.step_id') AS step_id,
  EXTRACT_ARG(arg_set_id, 'args.ts') AS ts,
  EXTRACT_ARG(arg_set_id, 'args.ts_end') AS ts_end
FROM _molprof_fact
WHERE fact = 'step_span';

CREATE PERFETTO TABLE _molprof_fact_step_run(
  step_id JOINID(slice.id),
  first_id JOINID(slice.id),
  last_id JOINID(slice.id)
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.step_id') AS step_id,
  EXTRACT_ARG(arg_set_id, 'args.first_id') AS first_id,
  EXTRACT_ARG(arg_set_id, 'args.last_id') AS last_id
FROM _molprof_fact
WHERE fact = 'step_run';

CREATE PERFETTO TABLE _molprof_fact_operator_step(
  id JOINID(slice.id),
  step_id JOINID(slice.id),
  top_id JOINID(slice.id)
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.id') AS id,
  EXTRACT_ARG(arg_set_id, 'args.step_id') AS step_id,
  EXTRACT_ARG(arg_set_id, 'args.top_id') AS top_id
FROM _molprof_fact
WHERE fact = 'operator_step';

CREATE PERFETTO TABLE _molprof_fact_leaf_operator(
  id JOINID(slice.id)
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.id') AS id
FROM _molprof_fact
WHERE fact = 'leaf_operator';

CREATE PERFETTO TABLE _molprof_fact_phase_run(
  phase_id JOINID(slice.id),
  first_id JOINID(slice.id),
  last_id JOINID(slice.id)
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.phase_id') AS phase_id,
  EXTRACT_ARG(arg_set_id, 'args.first_id') AS first_id,
  EXTRACT_ARG(arg_set_id, 'args.last_id') AS last_id
FROM _molprof_fact
WHERE fact = 'phase_run';

CREATE PERFETTO TABLE _molprof_fact_slice_step_run(
  step_id JOINID(slice.id),
  first_id JOINID(slice.id),
  last_id JOINID(slice.id)
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.step_id') AS step_id,
  EXTRACT_ARG(arg_set_id, 'args.first_id') AS first_id,
  EXTRACT_ARG(arg_set_id, 'args.last_id') AS last_id
FROM _molprof_fact
WHERE fact = 'slice_step_run';

CREATE PERFETTO TABLE _molprof_fact_step_time(
  step_id JOINID(slice.id),
  done_ts TIMESTAMP,
  time_ns DURATION
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.step_id') AS step_id,
  EXTRACT_ARG(arg_set_id, 'args.done_ts') AS done_ts,
  EXTRACT_ARG(arg_set_id, 'args.time_ns') AS time_ns
FROM _molprof_fact
WHERE fact = 'step_time';

CREATE PERFETTO TABLE _molprof_fact_step_sum(
  step_id JOINID(slice.id),
  launches LONG,
  graph_launches LONG,
  kernels LONG,
  gpu_ns DURATION,
  syncs LONG,
  sync_ns DURATION,
  leaf_operators LONG
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.step_id') AS step_id,
  EXTRACT_ARG(arg_set_id, 'args.launches') AS launches,
  EXTRACT_ARG(arg_set_id, 'args.graph_launches') AS graph_launches,
  EXTRACT_ARG(arg_set_id, 'args.kernels') AS kernels,
  EXTRACT_ARG(arg_set_id, 'args.gpu_ns') AS gpu_ns,
  EXTRACT_ARG(arg_set_id, 'args.syncs') AS syncs,
  EXTRACT_ARG(arg_set_id, 'args.sync_ns') AS sync_ns,
  EXTRACT_ARG(arg_set_id, 'args.leaf_operators') AS leaf_operators
FROM _molprof_fact
WHERE fact = 'step_sum';

CREATE PERFETTO TABLE _molprof_fact_phase_sum(
  phase_id JOINID(slice.id),
  launches LONG,
  graph_launches LONG,
  kernels LONG,
  gpu_ns DURATION,
  syncs LONG,
  sync_ns DURATION,
  leaf_operators LONG
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.phase_id') AS phase_id,
  EXTRACT_ARG(arg_set_id, 'args.launches') AS launches,
  EXTRACT_ARG(arg_set_id, 'args.graph_launches') AS graph_launches,
  EXTRACT_ARG(arg_set_id, 'args.kernels') AS kernels,
  EXTRACT_ARG(arg_set_id, 'args.gpu_ns') AS gpu_ns,
  EXTRACT_ARG(arg_set_id, 'args.syncs') AS syncs,
  EXTRACT_ARG(arg_set_id, 'args.sync_ns') AS sync_ns,
  EXTRACT_ARG(arg_set_id, 'args.leaf_operators') AS leaf_operators
FROM _molprof_fact
WHERE fact = 'phase_sum';

CREATE PERFETTO TABLE _molprof_fact_phase_own(
  id JOINID(slice.id),
  own_ns DURATION
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.id') AS id,
  EXTRACT_ARG(arg_set_id, 'args.own_ns') AS own_ns
FROM _molprof_fact
WHERE fact = 'phase_own';

CREATE PERFETTO TABLE _molprof_fact_host_track(
  track_id JOINID(track.id),
  operators LONG,
  gpu_calls LONG,
  ts TIMESTAMP
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.track_id') AS track_id,
  EXTRACT_ARG(arg_set_id, 'args.operators') AS operators,
  EXTRACT_ARG(arg_set_id, 'args.gpu_calls') AS gpu_calls,
  EXTRACT_ARG(arg_set_id, 'args.ts') AS ts
FROM _molprof_fact
WHERE fact = 'host_track';

CREATE PERFETTO TABLE _molprof_fact_repeated_sync(
  copy_id JOINID(slice.id),
  id JOINID(slice.id)
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.copy_id') AS copy_id,
  EXTRACT_ARG(arg_set_id, 'args.id') AS id
FROM _molprof_fact
WHERE fact = 'repeated_sync';

CREATE PERFETTO TABLE _molprof_fact_device_sync(
  id JOINID(slice.id),
  slack DURATION
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.id') AS id,
  EXTRACT_ARG(arg_set_id, 'args.slack') AS slack
FROM _molprof_fact
WHERE fact = 'device_sync';

CREATE PERFETTO TABLE _molprof_fact_clock(
  early_work LONG,
  earliest_ns DURATION,
  late_syncs LONG,
  latest_ns DURATION,
  least_delay_ns DURATION,
  least_slack_ns DURATION,
  mean_delay_ns DOUBLE
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.early_work') AS early_work,
  EXTRACT_ARG(arg_set_id, 'args.earliest_ns') AS earliest_ns,
  EXTRACT_ARG(arg_set_id, 'args.late_syncs') AS late_syncs,
  EXTRACT_ARG(arg_set_id, 'args.latest_ns') AS latest_ns,
  EXTRACT_ARG(arg_set_id, 'args.least_delay_ns') AS least_delay_ns,
  EXTRACT_ARG(arg_set_id, 'args.least_slack_ns') AS least_slack_ns,
  EXTRACT_ARG(arg_set_id, 'args.mean_delay_ns') AS mean_delay_ns
FROM _molprof_fact
WHERE fact = 'clock';

CREATE PERFETTO TABLE _molprof_fact_captured_launch(
  id JOINID(slice.id)
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.id') AS id
FROM _molprof_fact
WHERE fact = 'captured_launch';

CREATE PERFETTO TABLE _molprof_fact_lost_launch(
  id JOINID(slice.id)
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.id') AS id
FROM _molprof_fact
WHERE fact = 'lost_launch';

CREATE PERFETTO TABLE _molprof_fact_missing_work(
  position STRING,
  launches LONG,
  in_steps LONG,
  first_ts TIMESTAMP,
  last_ts TIMESTAMP
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.position') AS position,
  EXTRACT_ARG(arg_set_id, 'args.launches') AS launches,
  EXTRACT_ARG(arg_set_id, 'args.in_steps') AS in_steps,
  EXTRACT_ARG(arg_set_id, 'args.first_ts') AS first_ts,
  EXTRACT_ARG(arg_set_id, 'args.last_ts') AS last_ts
FROM _molprof_fact
WHERE fact = 'missing_work';

CREATE PERFETTO TABLE _molprof_fact_missing_time(
  position STRING,
  device STRING,
  inside_ns DURATION,
  outside_ns DURATION
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.position') AS position,
  EXTRACT_ARG(arg_set_id, 'args.device') AS device,
  EXTRACT_ARG(arg_set_id, 'args.inside_ns') AS inside_ns,
  EXTRACT_ARG(arg_set_id, 'args.outside_ns') AS outside_ns
FROM _molprof_fact
WHERE fact = 'missing_time';

CREATE PERFETTO TABLE _molprof_fact_long_sync(
  id JOINID(slice.id),
  dur DURATION
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.id') AS id,
  EXTRACT_ARG(arg_set_id, 'args.dur') AS dur
FROM _molprof_fact
WHERE fact = 'long_sync';

CREATE PERFETTO TABLE _molprof_fact_missing_call(
  position STRING,
  kernels LONG,
  calls LONG,
  kernel_time_ns DURATION,
  first_ts TIMESTAMP
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.position') AS position,
  EXTRACT_ARG(arg_set_id, 'args.kernels') AS kernels,
  EXTRACT_ARG(arg_set_id, 'args.calls') AS calls,
  EXTRACT_ARG(arg_set_id, 'args.kernel_time_ns') AS kernel_time_ns,
  EXTRACT_ARG(arg_set_id, 'args.first_ts') AS first_ts
FROM _molprof_fact
WHERE fact = 'missing_call';

CREATE PERFETTO TABLE _molprof_fact_graph_incomplete(
  device STRING,
  launches LONG,
  absent LONG,
  time_ns DURATION
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.device') AS device,
  EXTRACT_ARG(arg_set_id, 'args.launches') AS launches,
  EXTRACT_ARG(arg_set_id, 'args.absent') AS absent,
  EXTRACT_ARG(arg_set_id, 'args.time_ns') AS time_ns
FROM _molprof_fact
WHERE fact = 'graph_incomplete';

CREATE PERFETTO TABLE _molprof_fact_graph_replay(
  launch_id JOINID(slice.id),
  graph LONG,
  replay LONG,
  graph_id LONG,
  ts TIMESTAMP,
  dur DURATION,
  kernels LONG,
  memory_operations LONG,
  gpu_ns DURATION,
  gaps_ns DURATION
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.launch_id') AS launch_id,
  EXTRACT_ARG(arg_set_id, 'args.graph') AS graph,
  EXTRACT_ARG(arg_set_id, 'args.replay') AS replay,
  EXTRACT_ARG(arg_set_id, 'args.graph_id') AS graph_id,
  EXTRACT_ARG(arg_set_id, 'args.ts') AS ts,
  EXTRACT_ARG(arg_set_id, 'args.dur') AS dur,
  EXTRACT_ARG(arg_set_id, 'args.kernels') AS kernels,
  EXTRACT_ARG(arg_set_id, 'args.memory_operations') AS memory_operations,
  EXTRACT_ARG(arg_set_id, 'args.gpu_ns') AS gpu_ns,
  EXTRACT_ARG(arg_set_id, 'args.gaps_ns') AS gaps_ns
FROM _molprof_fact
WHERE fact = 'graph_replay';

CREATE PERFETTO TABLE _molprof_fact_replayed_graph(
  graph LONG,
  graph_id LONG,
  replays LONG,
  kernels LONG,
  memory_operations LONG,
  p50_ns DURATION,
  shortest_ns DURATION,
  longest_ns DURATION,
  gpu_ns DURATION,
  gaps_ns DURATION
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.graph') AS graph,
  EXTRACT_ARG(arg_set_id, 'args.graph_id') AS graph_id,
  EXTRACT_ARG(arg_set_id, 'args.replays') AS replays,
  EXTRACT_ARG(arg_set_id, 'args.kernels') AS kernels,
  EXTRACT_ARG(arg_set_id, 'args.memory_operations') AS memory_operations,
  EXTRACT_ARG(arg_set_id, 'args.p50_ns') AS p50_ns,
  EXTRACT_ARG(arg_set_id, 'args.shortest_ns') AS shortest_ns,
  EXTRACT_ARG(arg_set_id, 'args.longest_ns') AS longest_ns,
  EXTRACT_ARG(arg_set_id, 'args.gpu_ns') AS gpu_ns,
  EXTRACT_ARG(arg_set_id, 'args.gaps_ns') AS gaps_ns
FROM _molprof_fact
WHERE fact = 'replayed_graph';

CREATE PERFETTO TABLE _molprof_fact_graph_position(
  graph LONG,
  position LONG,
  name STRING,
  category STRING,
  count LONG,
  p50_ns DURATION,
  shortest_ns DURATION,
  longest_ns DURATION,
  time_ns DURATION,
  p50_gap_ns DURATION,
  gaps_ns DURATION
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.graph') AS graph,
  EXTRACT_ARG(arg_set_id, 'args.position') AS position,
  EXTRACT_ARG(arg_set_id, 'args.name') AS name,
  EXTRACT_ARG(arg_set_id, 'args.category') AS category,
  EXTRACT_ARG(arg_set_id, 'args.count') AS count,
  EXTRACT_ARG(arg_set_id, 'args.p50_ns') AS p50_ns,
  EXTRACT_ARG(arg_set_id, 'args.shortest_ns') AS shortest_ns,
  EXTRACT_ARG(arg_set_id, 'args.longest_ns') AS longest_ns,
  EXTRACT_ARG(arg_set_id, 'args.time_ns') AS time_ns,
  EXTRACT_ARG(arg_set_id, 'args.p50_gap_ns') AS p50_gap_ns,
  EXTRACT_ARG(arg_set_id, 'args.gaps_ns') AS gaps_ns
FROM _molprof_fact
WHERE fact = 'graph_position';

CREATE PERFETTO TABLE _molprof_fact_graph_node(
  id JOINID(slice.id),
  launch_id JOINID(slice.id),
  graph LONG,
  replay LONG,
  position LONG,
  gap_ns DURATION
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.id') AS id,
  EXTRACT_ARG(arg_set_id, 'args.launch_id') AS launch_id,
  EXTRACT_ARG(arg_set_id, 'args.graph') AS graph,
  EXTRACT_ARG(arg_set_id, 'args.replay') AS replay,
  EXTRACT_ARG(arg_set_id, 'args.position') AS position,
  EXTRACT_ARG(arg_set_id, 'args.gap_ns') AS gap_ns
FROM _molprof_fact
WHERE fact = 'graph_node';

CREATE PERFETTO TABLE _molprof_fact_frame_path(
  path_id LONG,
  kind STRING,
  name STRING,
  class STRING,
  module STRING,
  layer LONG,
  operator STRING,
  source STRING
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.path_id') AS path_id,
  EXTRACT_ARG(arg_set_id, 'args.kind') AS kind,
  EXTRACT_ARG(arg_set_id, 'args.name') AS name,
  EXTRACT_ARG(arg_set_id, 'args.class') AS class,
  EXTRACT_ARG(arg_set_id, 'args.module') AS module,
  EXTRACT_ARG(arg_set_id, 'args.layer') AS layer,
  EXTRACT_ARG(arg_set_id, 'args.operator') AS operator,
  EXTRACT_ARG(arg_set_id, 'args.source') AS source
FROM _molprof_fact
WHERE fact = 'frame_path';

CREATE PERFETTO TABLE _molprof_fact_frame(
  id JOINID(slice.id),
  path_id LONG,
  parent_id JOINID(slice.id)
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.id') AS id,
  EXTRACT_ARG(arg_set_id, 'args.path_id') AS path_id,
  EXTRACT_ARG(arg_set_id, 'args.parent_id') AS parent_id
FROM _molprof_fact
WHERE fact = 'frame';

CREATE PERFETTO TABLE _molprof_fact_call_frame(
  id JOINID(slice.id),
  path_id LONG,
  frame_id JOINID(slice.id),
  operator_id JOINID(slice.id)
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.id') AS id,
  EXTRACT_ARG(arg_set_id, 'args.path_id') AS path_id,
  EXTRACT_ARG(arg_set_id, 'args.frame_id') AS frame_id,
  EXTRACT_ARG(arg_set_id, 'args.operator_id') AS operator_id
FROM _molprof_fact
WHERE fact = 'call_frame';

CREATE PERFETTO TABLE _molprof_fact_operator_call(
  id JOINID(slice.id),
  caller_id JOINID(slice.id),
  called_ns DURATION
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.id') AS id,
  EXTRACT_ARG(arg_set_id, 'args.caller_id') AS caller_id,
  EXTRACT_ARG(arg_set_id, 'args.called_ns') AS called_ns
FROM _molprof_fact
WHERE fact = 'operator_call';

CREATE PERFETTO TABLE _molprof_fact_memory(
  id JOINID(slice.id),
  path_id LONG,
  frame_id JOINID(slice.id),
  phase_id JOINID(slice.id),
  step_id JOINID(slice.id),
  upid JOINID(process.id),
  device STRING,
  bytes LONG,
  total_bytes LONG,
  reserved_bytes LONG,
  unexplained_bytes LONG,
  allocation_id JOINID(slice.id),
  next_ts TIMESTAMP,
  freed_ts TIMESTAMP,
  layers_end_ts TIMESTAMP
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.id') AS id,
  EXTRACT_ARG(arg_set_id, 'args.path_id') AS path_id,
  EXTRACT_ARG(arg_set_id, 'args.frame_id') AS frame_id,
  EXTRACT_ARG(arg_set_id, 'args.phase_id') AS phase_id,
  EXTRACT_ARG(arg_set_id, 'args.step_id') AS step_id,
  EXTRACT_ARG(arg_set_id, 'args.upid') AS upid,
  EXTRACT_ARG(arg_set_id, 'args.device') AS device,
  EXTRACT_ARG(arg_set_id, 'args.bytes') AS bytes,
  EXTRACT_ARG(arg_set_id, 'args.total_bytes') AS total_bytes,
  EXTRACT_ARG(arg_set_id, 'args.reserved_bytes') AS reserved_bytes,
  EXTRACT_ARG(arg_set_id, 'args.unexplained_bytes') AS unexplained_bytes,
  EXTRACT_ARG(arg_set_id, 'args.allocation_id') AS allocation_id,
  EXTRACT_ARG(arg_set_id, 'args.next_ts') AS next_ts,
  EXTRACT_ARG(arg_set_id, 'args.freed_ts') AS freed_ts,
  EXTRACT_ARG(arg_set_id, 'args.layers_end_ts') AS layers_end_ts
FROM _molprof_fact
WHERE fact = 'memory';

CREATE PERFETTO TABLE _molprof_fact_module(
  id JOINID(slice.id),
  depth LONG
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.id') AS id,
  EXTRACT_ARG(arg_set_id, 'args.depth') AS depth
FROM _molprof_fact
WHERE fact = 'module';

CREATE PERFETTO TABLE _molprof_fact_engine_phase(
  id JOINID(slice.id)
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.id') AS id
FROM _molprof_fact
WHERE fact = 'engine_phase';

CREATE PERFETTO TABLE _molprof_fact_loop_phase(
  id JOINID(slice.id),
  ts TIMESTAMP,
  dur DURATION,
  call LONG,
  step LONG
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.id') AS id,
  EXTRACT_ARG(arg_set_id, 'args.ts') AS ts,
  EXTRACT_ARG(arg_set_id, 'args.dur') AS dur,
  EXTRACT_ARG(arg_set_id, 'args.call') AS call,
  EXTRACT_ARG(arg_set_id, 'args.step') AS step
FROM _molprof_fact
WHERE fact = 'loop_phase';

CREATE PERFETTO TABLE _molprof_fact_loop_step(
  id JOINID(slice.id),
  dur DURATION,
  part STRING,
  call LONG,
  step LONG,
  is_prefill LONG,
  outputs LONG
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.id') AS id,
  EXTRACT_ARG(arg_set_id, 'args.dur') AS dur,
  EXTRACT_ARG(arg_set_id, 'args.part') AS part,
  EXTRACT_ARG(arg_set_id, 'args.call') AS call,
  EXTRACT_ARG(arg_set_id, 'args.step') AS step,
  EXTRACT_ARG(arg_set_id, 'args.is_prefill') AS is_prefill,
  EXTRACT_ARG(arg_set_id, 'args.outputs') AS outputs
FROM _molprof_fact
WHERE fact = 'loop_step';

CREATE PERFETTO TABLE _molprof_fact_step_choice(
  call LONG,
  step LONG,
  operator_id JOINID(slice.id),
  criteria LONG
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.call') AS call,
  EXTRACT_ARG(arg_set_id, 'args.step') AS step,
  EXTRACT_ARG(arg_set_id, 'args.operator_id') AS operator_id,
  EXTRACT_ARG(arg_set_id, 'args.criteria') AS criteria
FROM _molprof_fact
WHERE fact = 'step_choice';

CREATE PERFETTO TABLE _molprof_fact_single_processor(
  id JOINID(slice.id)
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.id') AS id
FROM _molprof_fact
WHERE fact = 'single_processor';

CREATE PERFETTO TABLE _molprof_fact_phase_step(
  phase_id JOINID(slice.id),
  step_id JOINID(slice.id)
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.phase_id') AS phase_id,
  EXTRACT_ARG(arg_set_id, 'args.step_id') AS step_id
FROM _molprof_fact
WHERE fact = 'phase_step';

CREATE PERFETTO TABLE _molprof_fact_step_period(
  step_id JOINID(slice.id),
  period DURATION
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.step_id') AS step_id,
  EXTRACT_ARG(arg_set_id, 'args.period') AS period
FROM _molprof_fact
WHERE fact = 'step_period';

CREATE PERFETTO TABLE _molprof_fact_mask_step(
  step_id JOINID(slice.id),
  masks LONG,
  span LONG,
  position LONG
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.step_id') AS step_id,
  EXTRACT_ARG(arg_set_id, 'args.masks') AS masks,
  EXTRACT_ARG(arg_set_id, 'args.span') AS span,
  EXTRACT_ARG(arg_set_id, 'args.position') AS position
FROM _molprof_fact
WHERE fact = 'mask_step';

CREATE PERFETTO TABLE _molprof_fact_block_text(
  sequence LONG,
  block LONG,
  text STRING,
  marked_text STRING,
  surplus_text STRING
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.sequence') AS sequence,
  EXTRACT_ARG(arg_set_id, 'args.block') AS block,
  EXTRACT_ARG(arg_set_id, 'args.text') AS text,
  EXTRACT_ARG(arg_set_id, 'args.marked_text') AS marked_text,
  EXTRACT_ARG(arg_set_id, 'args.surplus_text') AS surplus_text
FROM _molprof_fact
WHERE fact = 'block_text';

CREATE PERFETTO TABLE _molprof_fact_junk_run(
  sequence LONG,
  position LONG,
  tokens LONG,
  text STRING
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.sequence') AS sequence,
  EXTRACT_ARG(arg_set_id, 'args.position') AS position,
  EXTRACT_ARG(arg_set_id, 'args.tokens') AS tokens,
  EXTRACT_ARG(arg_set_id, 'args.text') AS text
FROM _molprof_fact
WHERE fact = 'junk_run';
