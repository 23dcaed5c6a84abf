-- Drift: how far the tokens of each coordinate block are from what its coordinates need.
--
-- Example:
--   SELECT drift, blocks
--   FROM molprof_drift_histogram
--   ORDER BY drift;

INCLUDE PERFETTO MODULE molprof.tokens;

-- One row per coordinate block, in order of sequence and block. Empty for traces of other origin.
CREATE PERFETTO TABLE molprof_block(
  -- Sequence, from 0.
  sequence LONG,
  -- Block of the sequence, from 0.
  block LONG,
  -- Tokens of the block.
  tokens LONG,
  -- Tokens that its coordinates need.
  free LONG,
  -- Tokens that begin after the longest prefix that reads x,y,z.
  junk LONG,
  -- Digit tokens beyond the format's precision.
  filler LONG,
  -- Positions given to the block minus tokens that its coordinates need: junk and filler together.
  drift LONG,
  -- Text of the block's free, junk and filler tokens.
  text STRING
)
AS
WITH
  -- Ordered here, because GROUP_CONCAT joins in the order of its input.
  token AS (
    SELECT
      sequence,
      block,
      kind,
      text
    FROM molprof_token
    WHERE
      block >= 0
    ORDER BY
      sequence,
      position
  )
SELECT
  sequence,
  block,
  COUNT() AS tokens,
  COUNT() FILTER (WHERE kind = 'free') AS free,
  COUNT() FILTER (WHERE kind = 'junk') AS junk,
  COUNT() FILTER (WHERE kind = 'filler') AS filler,
  COUNT() FILTER (WHERE kind IN ('junk', 'filler')) AS drift,
  GROUP_CONCAT(IIF(kind IN ('free', 'junk', 'filler'), text, ''), '') AS text
FROM token
GROUP BY
  sequence,
  block
ORDER BY
  sequence,
  block;

-- One row per sequence, in order.
CREATE PERFETTO VIEW molprof_sequence_drift(
  -- Sequence, from 0.
  sequence LONG,
  -- The prompt's molecule; null for a plain-text prompt.
  smiles STRING,
  -- Generated tokens, EOS included.
  tokens LONG,
  -- Tokens that coordinates need.
  free LONG,
  -- Tokens that the prompt fixes: brackets, atoms, bonds, tags.
  copy LONG,
  -- Tokens of a block after its coordinates.
  junk LONG,
  -- Digit tokens beyond the format's precision.
  filler LONG,
  -- End-of-sequence tokens, 0 or 1.
  eos LONG,
  -- Coordinate blocks.
  blocks LONG,
  -- Blocks with at least one junk token.
  junk_blocks LONG
)
AS
WITH
  kinds AS (
    SELECT
      sequence,
      COUNT() AS tokens,
      COUNT() FILTER (WHERE kind = 'free') AS free,
      COUNT() FILTER (WHERE kind = 'copy') AS copy,
      COUNT() FILTER (WHERE kind = 'junk') AS junk,
      COUNT() FILTER (WHERE kind = 'filler') AS filler,
      COUNT() FILTER (WHERE kind = 'eos') AS eos
    FROM molprof_token
    GROUP BY
      sequence
  ),
  blocks AS (
    SELECT
      sequence,
      COUNT() AS blocks,
      COUNT() FILTER (WHERE junk > 0) AS junk_blocks
    FROM molprof_block
    GROUP BY
      sequence
  )
SELECT
  sequence.sequence,
  sequence.smiles,
  IFNULL(kinds.tokens, 0) AS tokens,
  IFNULL(kinds.free, 0) AS free,
  IFNULL(kinds.copy, 0) AS copy,
  IFNULL(kinds.junk, 0) AS junk,
  IFNULL(kinds.filler, 0) AS filler,
  IFNULL(kinds.eos, 0) AS eos,
  IFNULL(blocks.blocks, 0) AS blocks,
  IFNULL(blocks.junk_blocks, 0) AS junk_blocks
FROM molprof_sequence AS sequence
LEFT JOIN kinds
  ON kinds.sequence = sequence.sequence
LEFT JOIN blocks
  ON blocks.sequence = sequence.sequence
ORDER BY
  sequence.sequence;

-- Blocks by drift: how many blocks had so many junk and filler tokens.
CREATE PERFETTO VIEW molprof_drift_histogram(
  -- Junk and filler tokens of a block.
  drift LONG,
  -- Blocks with that drift.
  blocks LONG
)
AS
SELECT
  drift,
  COUNT() AS blocks
FROM molprof_block
GROUP BY
  drift
ORDER BY
  drift;
