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
  place AS block,
  MAX(IIF(field = 'args.block_free', int_value, NULL)) AS template_free,
  -- -1: not known.
  NULLIF(MAX(IIF(field = 'args.block_needed', int_value, NULL)), -1) AS needed,
  MAX(field = 'args.block_needed') AS written
FROM _molprof_sequence_value
WHERE field IN ('args.block_free', 'args.block_needed')
GROUP BY sequence, place;

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
  -- A block's text may begin in the token that opens the block and end in the one that closes it.
  neighbour AS (
    SELECT
      token.sequence,
      token.block,
      token.position,
      token.kind,
      token.text,
      token.kind IN ('junk', 'filler') AS surplus,
      IIF(last.sequence IS NULL, '', last.text) AS before,
      IIF(next.sequence IS NULL, '', next.text) AS after,
      IIF(last.sequence IS NULL, -1, last.block) AS block_before,
      IIF(next.sequence IS NULL, -1, next.block) AS block_after,
      IIF(last.sequence IS NULL, 0, last.kind IN ('junk', 'filler')) AS surplus_before,
      IIF(next.sequence IS NULL, 0, next.kind IN ('junk', 'filler')) AS surplus_after,
      -- A block ends at the first character of what closes it or opens another: no coordinate contains them.
      SUBSTR(block_open, 1, 1) AS first,
      SUBSTR(block_open, -1) AS last,
      SUBSTR(block_close, 1, 1) AS end
    FROM molprof_sequence AS sequence
    JOIN molprof_token AS token USING (sequence)
    -- Rows of tokens are numbered in order of sequence and position.
    LEFT JOIN molprof_token AS last ON last._auto_id = token._auto_id - 1 AND last.sequence = token.sequence
    LEFT JOIN molprof_token AS next ON next._auto_id = token._auto_id + 1 AND next.sequence = token.sequence
    WHERE token.block >= 0
  ),
  -- Ordered here, because GROUP_CONCAT joins in the order of its input.
  token AS (
    SELECT
      sequence,
      block,
      position,
      kind,
      -- A junk token may close its block.
      IIF(INSTR(text, end) > 0, SUBSTR(text, 1, INSTR(text, end) - 1), text) AS text,
      surplus,
      -- head: what follows the last < (or what else opens a block) of the token before the block. tail: what precedes
      -- the first > of the token behind it, except in tokens such as </s>.
      IIF(block_before != block, SUBSTR(before, LENGTH(RTRIM(before, REPLACE(before, last, ''))) + 1), '') AS head,
      IIF(
        block_after != block AND INSTR(SUBSTR(after, 1, MAX(INSTR(after, end) - 1, 0)), first) = 0,
        SUBSTR(after, 1, MAX(INSTR(after, end) - 1, 0)),
        ''
      ) AS tail,
      IIF(surplus AND NOT (surplus_before AND block_before = block), '|', '') AS bar_before,
      IIF(surplus AND NOT (surplus_after AND block_after = block), '|', '') AS bar_after
    FROM neighbour
    ORDER BY sequence, position
  ),
  block AS (
    SELECT
      sequence,
      block,
      MIN(position) AS position,
      COUNT() AS tokens,
      COUNT() FILTER (WHERE kind = 'free') AS free,
      COUNT() FILTER (WHERE kind = 'junk') AS junk,
      COUNT() FILTER (WHERE kind = 'filler') AS filler,
      MIN(IIF(kind = 'junk', position, NULL)) AS junk_position,
      GROUP_CONCAT(head || text || tail, '') AS text,
      GROUP_CONCAT(head || bar_before || text || bar_after || tail, '') AS marked_text,
      GROUP_CONCAT(IIF(surplus, text, ''), '') AS surplus_text
    FROM token
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
  IFNULL(block.text, '') AS text,
  of.block_open || IFNULL(block.marked_text, '') || of.block_close AS marked_text,
  IFNULL(block.surplus_text, '') AS surplus_text
FROM opened
JOIN molprof_sequence AS of ON of.sequence = opened.sequence
LEFT JOIN block ON block.sequence = opened.sequence AND block.block = opened.block
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
