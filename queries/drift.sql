-- Drift: positions that a template gives each coordinate block, minus the tokens that it needs.
--
-- Example:
--   SELECT drift, blocks
--   FROM molprof_drift_histogram
--   ORDER BY drift;

INCLUDE PERFETTO MODULE molprof.tokens;

-- By sequence and block: FREE positions that the template gives, tokens that the coordinates need, and whether the
-- block was written.
CREATE PERFETTO TABLE _molprof_block_array AS
SELECT
  sequence,
  position AS block,
  MAX(IIF(field = 'args.block_free', int_value, NULL)) AS template_free,
  -- -1: not known.
  NULLIF(MAX(IIF(field = 'args.block_needed', int_value, NULL)), -1) AS needed,
  MAX(field = 'args.block_needed') AS written
FROM _molprof_sequence_value
WHERE field IN ('args.block_free', 'args.block_needed')
GROUP BY sequence, position;

-- One row per coordinate block, in order of sequence and block: every one that is opened, also without tokens behind
-- it, as in <> or at the end of the text. Empty for foreign traces.
CREATE PERFETTO TABLE molprof_block(
  -- Sequence, from 0.
  sequence LONG,
  -- Block of the sequence, from 0.
  block LONG,
  -- Position of its first token; null without tokens.
  position LONG,
  -- Tokens of the block, 0 or more.
  tokens LONG,
  -- Tokens that its coordinates took.
  free LONG,
  -- Junk: tokens that begin after the longest prefix of the form x,y,z.
  junk LONG,
  -- Filler: digit tokens beyond the format's precision.
  filler LONG,
  -- FREE positions that the template gives the block; null without a template or where not recorded.
  template_free LONG,
  -- Tokens that its coordinates need at the precision of the format; for a block that is not x,y,z but can become it,
  -- the least number; null where not known or not recorded.
  needed LONG,
  -- Positions given minus tokens needed; below 0 the template is too short; null where one of them is null.
  drift LONG,
  -- Position of the first junk token; null without junk.
  junk_position LONG,
  -- Text between the block's brackets.
  text STRING,
  -- The same with its brackets, every run of junk and filler tokens between bars.
  marked_text STRING,
  -- Text of the junk and filler tokens alone.
  surplus_text STRING
) AS
WITH
  block AS (
    SELECT
      sequence,
      block,
      MIN(position) AS position,
      COUNT() AS tokens,
      COUNT() FILTER (WHERE kind = 'free') AS free,
      COUNT() FILTER (WHERE kind = 'junk') AS junk,
      COUNT() FILTER (WHERE kind = 'filler') AS filler,
      MIN(IIF(kind = 'junk', position, NULL)) AS junk_position
    FROM molprof_token
    WHERE block >= 0
    GROUP BY sequence, block
  ),
  opened AS (
    SELECT sequence, block
    FROM block
    UNION
    SELECT sequence, block
    FROM _molprof_block_array
    WHERE written
  )
SELECT
  opened.sequence,
  opened.block,
  block.position,
  IFNULL(block.tokens, 0) AS tokens,
  IFNULL(block.free, 0) AS free,
  IFNULL(block.junk, 0) AS junk,
  IFNULL(block.filler, 0) AS filler,
  given.template_free,
  given.needed,
  given.template_free - given.needed AS drift,
  block.junk_position,
  IFNULL(written.text, '') AS text,
  of.block_open || IFNULL(written.marked_text, '') || of.block_close AS marked_text,
  IFNULL(written.surplus_text, '') AS surplus_text
FROM opened
JOIN molprof_sequence AS of ON of.sequence = opened.sequence
LEFT JOIN block ON block.sequence = opened.sequence AND block.block = opened.block
LEFT JOIN _molprof_fact_block_text AS written ON written.sequence = opened.sequence AND written.block = opened.block
LEFT JOIN _molprof_block_array AS given ON given.sequence = opened.sequence AND given.block = opened.block
ORDER BY opened.sequence, opened.block;

-- One row per sequence, in order.
CREATE PERFETTO VIEW molprof_sequence_drift(
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
  filler LONG,
  -- End-of-sequence tokens, 0 or 1.
  eos LONG,
  -- Coordinate blocks.
  blocks LONG,
  -- Blocks with at least one junk token.
  junk_blocks LONG
) AS
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
    GROUP BY sequence
  ),
  blocks AS (
    SELECT
      sequence,
      COUNT() AS blocks,
      COUNT() FILTER (WHERE junk > 0) AS junk_blocks
    FROM molprof_block
    GROUP BY sequence
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
LEFT JOIN kinds ON kinds.sequence = sequence.sequence
LEFT JOIN blocks ON blocks.sequence = sequence.sequence
ORDER BY sequence.sequence;

-- Blocks by drift: the number of positions that the template gave beyond those that the coordinates need.
CREATE PERFETTO VIEW molprof_drift_histogram(
  -- FREE positions of the template minus tokens needed; below 0 too few; null where that is not known.
  drift LONG,
  -- Blocks with that drift.
  blocks LONG
) AS
SELECT
  drift,
  COUNT() AS blocks
FROM molprof_block
GROUP BY drift
ORDER BY drift;

-- Blocks by their number of junk and filler tokens, for runs with or without a template.
CREATE PERFETTO VIEW molprof_surplus_histogram(
  -- Junk and filler tokens of a block.
  surplus LONG,
  -- Blocks with that number.
  blocks LONG
) AS
SELECT
  junk + filler AS surplus,
  COUNT() AS blocks
FROM molprof_block
GROUP BY surplus
ORDER BY surplus;
