-- Causes of idle time: the idle time of each device, divided by what the CPU and the device did in it.
--
-- A gap ends with the next work of the device. Work is queued from the start of its call on. While nothing is queued, the
-- device waits for the thread that makes that call, and the time is divided by what this thread is in; while the thread
-- is in nothing recorded and another one started the work before the gap, by what that one is in. The time before the
-- first and after the last work of the device, as long as anything is recorded, is divided alike. Reports say what is in
-- quotes.
--
-- cpu_masks ("CPU in masks"): nothing is queued, and the thread fills, copies, applies or advances masks of constrained
-- decoding, or compiles a grammar or waits for one: it is in a phase mask_... or grammar_... of molprof.phase_marks. What
-- it does there, also a host sync, counts as nothing else.
--
-- cpu_data ("CPU in the data loader"): nothing is queued, and the thread waits for data or prepares it: in an operator or
-- annotation whose name holds dataload or data_load, as enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__. What
-- it does there counts as nothing else.
--
-- cpu_waited ("CPU in a host sync"): nothing is queued, and the thread is in a host sync.
--
-- cpu_calls ("CPU in other GPU calls"): nothing is queued, and the thread is in any other call of runtime or driver.
--
-- cpu_compiled ("CPU in Python of compiled code"): nothing is queued, and the thread is in what torch.compile made, but in
-- no call and in no operator inside of it. Torch-Compiled Region, CompiledFunction, CompiledFunctionBackward and TorchDynamo
-- Cache Lookup are recorded as operators, and what runs in them is the Python that calls compiled kernels.
--
-- cpu_operators ("CPU in operators"): nothing is queued, and the thread is in another operator, but in no call.
--
-- cpu_outside ("CPU outside operators"): nothing is queued, and the thread is in no operator: in Python, or in what is not
-- recorded.
--
-- launching ("launch under way"): from the start of the call on, until the work starts.
--
-- short ("pauses below 5 µs"): work was queued when the gap began, or its call is not recorded, and the gap is below
-- 5000 ns: the device's time between two pieces of work.
--
-- not_recorded ("not recorded"): the call of the work that ends the gap is not recorded, so the queue is not known; or the
-- thread is in a host sync that goes on 100000 ns or more after all recorded work, so what ran until then is not known.
--
-- other_stream ("waiting for another stream"): the work that ends the gap was called before the gap began, while work of
-- other streams alone ran last, and it starts at most 100000 ns after that. In a gap no stream of the device runs: what is
-- called later, or starts later, waited for something else.
--
-- other ("queued work not started"): work was queued, and the device did not start it: it waited for another device, another
-- rank, an event or host memory, or started up a graph; a trace does not hold for which. Of the time after a call, if its
-- work starts later than 100000 ns after its end, and later than the gap had lasted by then.
--
-- Example:
--   SELECT device, position, cause, count, time_ns, idle_ratio, longest_ns
--   FROM molprof_idle_cause
--   ORDER BY device, position, time_ns DESC, cause;

-- Idle time by device, position and cause, longest first. Those between the first and last work add up to the idle time
-- of molprof.devices.
CREATE PERFETTO VIEW molprof_idle_cause(
  -- Device number as text.
  device STRING,
  -- between the first and last work of the device, before the first, or after the last.
  position STRING,
  -- Cause of the time.
  cause STRING,
  -- Gaps in which it took any time.
  count LONG,
  -- Sum of that time, ns.
  time_ns DURATION,
  -- Share of the device's idle time in that position, 0 to 1.
  idle_ratio DOUBLE,
  -- Most in a single gap, ns.
  longest_ns DURATION
) AS
SELECT
  device,
  position,
  cause,
  SUM(count) AS count,
  SUM(time_ns) AS time_ns,
  1.0 * SUM(time_ns) / SUM(SUM(time_ns)) OVER (PARTITION BY device, position) AS idle_ratio,
  MAX(longest_ns) AS longest_ns
FROM _molprof_fact_idle_sum
GROUP BY device, position, cause
ORDER BY device, position, time_ns DESC, cause;
