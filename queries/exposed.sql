-- Exposed and hidden time of kernels, classes and phases: what other work ran at the same time.
--
-- Of all work of a kernel, class or phase: its busy time is the time in which any of it runs, exposed the part of that in
-- which nothing else of the device runs, hidden the rest: busy_ns = exposed_ns + hidden_ns. What runs beside work of its
-- own kind alone is exposed. Times of several devices add up. Where no work of a device overlaps, all of it is exposed.
-- The trace records no dependencies: that work can be hidden behind other work is not told, only how much there is of it.
--
-- Example:
--   SELECT class, busy_ns, exposed_ns, hidden_ns, hideable_ns, beside, beside_ns
--   FROM molprof_exposed_class
--   ORDER BY exposed_ns DESC, class;

INCLUDE PERFETTO MODULE molprof.call_phases;
INCLUDE PERFETTO MODULE molprof.devices;
INCLUDE PERFETTO MODULE molprof.gpu_work;
INCLUDE PERFETTO MODULE molprof.kernel_classes;
INCLUDE PERFETTO MODULE molprof.phases;
INCLUDE PERFETTO MODULE molprof.work_totals;

-- Work that may run at the same time as other work of its device, found by joining rows by number: other work has not
-- ended when it starts (of as many ends as starts before it, the last is not earlier), or the next starts before its end.
-- Some that runs alone is among it, such as the first of a device.
CREATE PERFETTO MACRO _molprof_not_alone(started TableOrSubquery)
RETURNS TableOrSubquery AS (
  SELECT work.id, work.device, work.ts, work.ts_end, work.call_id
  FROM $started AS work
  CROSS JOIN _molprof_device_end AS last
  WHERE last._auto_id = work._auto_id - 1 AND last.ts_end >= work.ts
  UNION
  SELECT work.id, work.device, work.ts, work.ts_end, work.call_id
  FROM $started AS work
  CROSS JOIN $started AS next
  WHERE next._auto_id = work._auto_id + 1 AND next.ts < work.ts_end
);

-- Work that runs at the same time as other work of its device. None is looked at where the times of all work add up to
-- the busy time.
CREATE PERFETTO TABLE _molprof_overlapping AS
WITH
  placed AS (
    SELECT
      *,
      MAX(ts_end) OVER (
        PARTITION BY device
        ORDER BY ts, id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
      ) AS busy_until,
      LEAD(ts) OVER (PARTITION BY device ORDER BY ts, id) AS next_ts
    FROM (
      SELECT *
      FROM _molprof_not_alone!(
        (SELECT work.*, work._auto_id FROM _molprof_only_device CROSS JOIN _molprof_work AS work)
      )
      UNION ALL
      SELECT * FROM _molprof_not_alone!(_molprof_device_start)
    )
    WHERE
      ts_end > ts
      AND (SELECT SUM(time_ns) FROM molprof_work_total) > (SELECT SUM(busy_ns) FROM molprof_device)
  )
SELECT
  id,
  device,
  ts,
  ts_end,
  call_id
FROM placed
WHERE busy_until > ts OR next_ts < ts_end
ORDER BY id;

-- Of overlapping work by key, a number from 1: sum of times, time in which any runs, and in which nothing else does. The
-- work that runs is of one key where the number of pieces times the sum of the squares of their keys is the square of
-- their sum.
CREATE PERFETTO MACRO _molprof_exposed_part(keyed TableOrSubquery)
RETURNS TableOrSubquery AS (
  WITH
    moment AS (
      SELECT
        device,
        ts,
        SUM(change) AS change,
        SUM(change * key) AS keys,
        SUM(change * key * key) AS squares
      FROM (
        SELECT device, ts, 1 AS change, key FROM $keyed
        UNION ALL
        SELECT device, ts_end, -1, key FROM $keyed
      )
      GROUP BY device, ts
    ),
    stretch AS (
      SELECT
        SUM(change) OVER passed AS running,
        SUM(keys) OVER passed AS keys,
        SUM(squares) OVER passed AS squares,
        LEAD(ts) OVER (PARTITION BY device ORDER BY ts) - ts AS dur
      FROM moment
      WINDOW passed AS (PARTITION BY device ORDER BY ts)
    ),
    exposed AS (
      SELECT
        keys / running AS key,
        SUM(dur) AS exposed_ns
      FROM stretch
      WHERE running > 0 AND running * squares = keys * keys
      GROUP BY keys / running
    ),
    -- What each piece adds to the union of its key: its part after all earlier ends.
    added AS (
      SELECT
        key,
        ts_end - ts AS dur,
        _molprof_added!(ts, ts_end, earlier) AS busy_ns
      FROM $keyed
      WINDOW
        earlier AS (
          PARTITION BY device, key
          ORDER BY ts, id
          ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        )
    )
  SELECT
    added.key,
    SUM(added.dur) AS time_ns,
    SUM(added.busy_ns) AS busy_ns,
    IFNULL(exposed.exposed_ns, 0) AS exposed_ns
  FROM added
  LEFT JOIN exposed USING (key)
  GROUP BY added.key
);

-- Names of work, numbered.
CREATE PERFETTO TABLE _molprof_exposed_name AS
SELECT
  ROW_NUMBER() OVER (ORDER BY work.category, work.name) AS key,
  DENSE_RANK() OVER (ORDER BY class.class) AS class_key,
  class.class,
  work.category,
  work.name,
  work.count,
  work.time_ns
FROM molprof_work_total AS work
JOIN molprof_work_class AS class ON class.category = work.category AND class.name = work.name;

-- Overlapping work with both numbers.
CREATE PERFETTO TABLE _molprof_overlapping_name AS
SELECT
  work.id,
  work.device,
  work.ts,
  work.ts_end,
  name.key,
  name.class_key
FROM _molprof_overlapping AS work
CROSS JOIN slice
CROSS JOIN _molprof_exposed_name AS name
WHERE
  slice.id = work.id AND name.category = slice.category AND name.name = IFNULL(slice.name, '(no name)')
ORDER BY work.id;

-- Kernels, copies and sets by name, the longest exposed time first.
CREATE PERFETTO VIEW molprof_exposed_kernel(
  -- Kernel, copy or set, as recorded.
  name STRING,
  -- Its class, as in molprof.kernel_classes.
  class STRING,
  -- Runs.
  count LONG,
  -- Sum of their times, ns.
  time_ns DURATION,
  -- Time in which any of them runs, ns.
  busy_ns DURATION,
  -- The part of it in which nothing else of the device runs, ns.
  exposed_ns DURATION,
  -- The rest, ns.
  hidden_ns DURATION
) AS
SELECT
  name.name,
  name.class,
  name.count,
  name.time_ns,
  name.time_ns - IFNULL(part.time_ns - part.busy_ns, 0) AS busy_ns,
  name.time_ns - IFNULL(part.time_ns - part.exposed_ns, 0) AS exposed_ns,
  IFNULL(part.busy_ns - part.exposed_ns, 0) AS hidden_ns
FROM _molprof_exposed_name AS name
LEFT JOIN _molprof_exposed_part!((SELECT id, device, ts, ts_end, key FROM _molprof_overlapping_name)) AS part USING (key)
ORDER BY exposed_ns DESC, name.name, name.class;

-- Pairs of classes whose work runs at the same time on a device: what both run is what they have together more than
-- their union.
CREATE PERFETTO TABLE molprof_class_overlap(
  class STRING,
  -- Another one.
  beside STRING,
  -- Time in which both run, ns.
  time_ns DURATION
) AS
WITH
  class AS (
    SELECT DISTINCT class_key, class
    FROM _molprof_exposed_name
    WHERE class_key IN (SELECT class_key FROM _molprof_overlapping_name)
  ),
  pair AS (
    SELECT
      one.class,
      other.class AS beside,
      work.class_key,
      one.class_key AS one_key,
      other.class_key AS other_key,
      work.id,
      work.device,
      work.ts,
      work.ts_end
    FROM class AS one
    JOIN class AS other ON other.class_key > one.class_key
    JOIN _molprof_overlapping_name AS work ON work.class_key IN (one.class_key, other.class_key)
  ),
  added AS (
    SELECT
      class,
      beside,
      _molprof_added!(ts, ts_end, earlier) AS of_both,
      _molprof_added!(ts, ts_end, earlier_of_one) AS of_one
    FROM pair
    WINDOW
      earlier AS (
        PARTITION BY one_key, other_key, device
        ORDER BY ts, id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
      ),
      earlier_of_one AS (
        PARTITION BY one_key, other_key, device, class_key
        ORDER BY ts, id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
      )
  ),
  total AS (
    SELECT
      class,
      beside,
      SUM(of_one) - SUM(of_both) AS time_ns
    FROM added
    GROUP BY class, beside
    HAVING SUM(of_one) > SUM(of_both)
  )
SELECT class, beside, time_ns
FROM total
UNION ALL
SELECT beside, class, time_ns
FROM total
ORDER BY class, time_ns DESC, beside;

-- Classes of work, the longest exposed time first.
CREATE PERFETTO TABLE molprof_exposed_class(
  -- Class, as in molprof.kernel_classes.
  class STRING,
  -- Kernels, copies or sets.
  count LONG,
  -- Sum of their times, ns.
  time_ns DURATION,
  -- Time in which any of them runs, ns.
  busy_ns DURATION,
  -- The part of it in which nothing of another class runs, ns.
  exposed_ns DURATION,
  -- The rest, ns.
  hidden_ns DURATION,
  -- Most that could still be hidden, ns: the exposed time, or that in which other work runs and this does not, if that
  -- is less. Whether any of it can run at the same time is not recorded.
  hideable_ns DURATION,
  -- The class that runs longest beside it; null where none does.
  beside STRING,
  -- For how long, ns; null as above.
  beside_ns DURATION
) AS
WITH
  named AS (
    SELECT
      class_key AS key,
      class,
      SUM(count) AS count,
      SUM(time_ns) AS time_ns
    FROM _molprof_exposed_name
    GROUP BY class_key, class
  ),
  found AS (
    SELECT
      named.class,
      named.count,
      named.time_ns,
      named.time_ns - IFNULL(part.time_ns - part.busy_ns, 0) AS busy_ns,
      named.time_ns - IFNULL(part.time_ns - part.exposed_ns, 0) AS exposed_ns
    FROM named
    LEFT JOIN _molprof_exposed_part!((SELECT id, device, ts, ts_end, class_key AS key FROM _molprof_overlapping_name))
      AS part USING (key)
  )
SELECT
  found.class,
  found.count,
  found.time_ns,
  found.busy_ns,
  found.exposed_ns,
  found.busy_ns - found.exposed_ns AS hidden_ns,
  MIN(found.exposed_ns, (SELECT SUM(busy_ns) FROM molprof_device) - found.busy_ns) AS hideable_ns,
  (SELECT pair.beside FROM molprof_class_overlap AS pair WHERE pair.class = found.class LIMIT 1) AS beside,
  (SELECT pair.time_ns FROM molprof_class_overlap AS pair WHERE pair.class = found.class LIMIT 1) AS beside_ns
FROM found
ORDER BY found.exposed_ns DESC, found.class;

-- Phases by the work whose call began in them, the longest exposed time first.
CREATE PERFETTO VIEW molprof_exposed_phase(
  -- Name of the phase; null for work outside any, and work without a recorded call.
  phase STRING,
  -- Kernels, copies and sets.
  count LONG,
  -- Sum of their times, ns.
  time_ns DURATION,
  -- Time in which any of them runs, ns.
  busy_ns DURATION,
  -- The part of it in which no work of another phase runs, ns.
  exposed_ns DURATION,
  -- The rest, ns.
  hidden_ns DURATION
) AS
WITH
  phase AS (
    SELECT
      phase,
      ROW_NUMBER() OVER (ORDER BY phase) AS key
    FROM (SELECT DISTINCT phase FROM molprof_phase)
  ),
  placed AS (
    SELECT
      place.id AS call_id,
      phase.key
    FROM molprof_call_phase AS place
    JOIN molprof_phase AS marked ON marked.id = place.phase_id
    JOIN phase USING (phase)
  ),
  total AS (
    SELECT
      IFNULL(placed.key, 0) AS key,
      COUNT() AS count,
      SUM(work.ts_end - work.ts) AS time_ns
    FROM _molprof_work AS work
    LEFT JOIN placed USING (call_id)
    GROUP BY IFNULL(placed.key, 0)
  ),
  keyed AS (
    SELECT
      work.id,
      work.device,
      work.ts,
      work.ts_end,
      IFNULL(placed.key, 0) + 1 AS key
    FROM _molprof_overlapping AS work
    LEFT JOIN placed USING (call_id)
  )
SELECT
  phase.phase,
  total.count,
  total.time_ns,
  total.time_ns - IFNULL(part.time_ns - part.busy_ns, 0) AS busy_ns,
  total.time_ns - IFNULL(part.time_ns - part.exposed_ns, 0) AS exposed_ns,
  IFNULL(part.busy_ns - part.exposed_ns, 0) AS hidden_ns
FROM total
LEFT JOIN phase USING (key)
LEFT JOIN _molprof_exposed_part!((SELECT * FROM keyed)) AS part ON part.key = total.key + 1
ORDER BY exposed_ns DESC, phase.phase;
