-- Exposed and hidden time of kernels and classes: their overlap with other work.
--
-- Of all work of a kernel or class: its busy time is the time in which any of it runs, exposed the part of that in
-- which nothing else of the device runs, hidden the rest: busy_ns = exposed_ns + hidden_ns. What overlaps only work of its
-- own kind is exposed. Times of several devices add up. Where no work of a device overlaps, all of it is exposed.
-- The trace records no dependencies: it shows how much work could be hidden behind other work, not that it can be.
--
-- Example:
--   SELECT class, busy_ns, exposed_ns, hidden_ns, hideable_ns, other_class, other_class_ns
--   FROM molprof_exposed_class
--   ORDER BY exposed_ns DESC, class;

INCLUDE PERFETTO MODULE molprof.devices;

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
  work.name,
  part.class,
  part.count,
  part.time_ns,
  part.busy_ns,
  part.exposed_ns,
  part.busy_ns - part.exposed_ns AS hidden_ns
FROM _molprof_fact_exposed_name AS part
JOIN _molprof_fact_work_total AS work USING (name_id)
ORDER BY part.exposed_ns DESC, work.name, part.class;

-- Pairs of classes whose work runs at the same time on a device.
CREATE PERFETTO VIEW molprof_class_overlap(
  class STRING,
  -- Another one.
  other_class STRING,
  -- Time in which both run, ns.
  time_ns DURATION
) AS
SELECT
  class,
  other_class,
  time_ns
FROM _molprof_fact_class_overlap
ORDER BY class, time_ns DESC, other_class;

-- Classes of work, the longest exposed time first.
CREATE PERFETTO VIEW molprof_exposed_class(
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
  -- The class with the longest overlap; null where none overlaps.
  other_class STRING,
  -- For how long, ns; null as above.
  other_class_ns DURATION
) AS
SELECT
  part.class,
  part.count,
  part.time_ns,
  part.busy_ns,
  part.exposed_ns,
  part.busy_ns - part.exposed_ns AS hidden_ns,
  MIN(part.exposed_ns, (SELECT SUM(busy_ns) FROM molprof_device) - part.busy_ns) AS hideable_ns,
  (SELECT pair.other_class FROM molprof_class_overlap AS pair WHERE pair.class = part.class LIMIT 1) AS other_class,
  (SELECT pair.time_ns FROM molprof_class_overlap AS pair WHERE pair.class = part.class LIMIT 1) AS other_class_ns
FROM _molprof_fact_exposed_class AS part
ORDER BY part.exposed_ns DESC, part.class;
