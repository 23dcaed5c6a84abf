-- Runaway tokens of answers: endless white space or digits, or repeated text.
--
-- Example:
--   SELECT sequence, position, tokens, cause, text
--   FROM molprof_runaway
--   ORDER BY tokens DESC, sequence, position;

-- One row per run of such tokens, in order of sequence and position; of answers to prompts of plain text alone.
CREATE PERFETTO VIEW molprof_runaway(
  -- Sequence, from 0.
  sequence LONG,
  -- Position of the first token of the run.
  position LONG,
  -- Tokens of the run, 1 or more.
  tokens LONG,
  -- white space, digits, or loop: other text that repeats.
  cause STRING,
  -- Text of the run.
  text STRING
) AS
SELECT
  sequence,
  position,
  tokens,
  CASE
    -- Space, no-break space, ideographic space, and the pictures that stand for tab to carriage return.
    WHEN TRIM(text, CHAR(32, 160, 12288, 9225, 9226, 9227, 9228, 9229)) = '' THEN 'white space'
    WHEN text NOT GLOB '*[^0-9]*' THEN 'digits'
    ELSE 'loop'
  END AS cause,
  text
FROM _molprof_fact_junk_run
ORDER BY sequence, position;
