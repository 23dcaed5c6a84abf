-- Tokens of answers that lead nowhere: white space, digits or the same text over and over.
--
-- Example:
--   SELECT sequence, position, tokens, cause, text
--   FROM molprof_runaway
--   ORDER BY tokens DESC, sequence, position;

INCLUDE PERFETTO MODULE molprof.tokens;

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
WITH
  -- Neighbours have the same difference of position and number.
  junk AS (
    SELECT
      sequence,
      position,
      text,
      position - ROW_NUMBER() OVER (PARTITION BY sequence ORDER BY position) AS run
    FROM molprof_token
    WHERE kind = 'junk' AND block = -1
    ORDER BY sequence, position
  ),
  joined AS (
    SELECT
      sequence,
      MIN(position) AS position,
      COUNT() AS tokens,
      GROUP_CONCAT(text, '') AS text
    FROM junk
    GROUP BY sequence, run
  )
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
FROM joined
ORDER BY sequence, position;
