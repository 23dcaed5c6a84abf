-- Sequences and their tokens, from molprof's token tracks (docs/trace-format.md).
--
-- Example:
--   SELECT sequence, position, text, kind, block, dur
--   FROM molprof_token
--   ORDER BY sequence, position;

-- One row per generated sequence. Empty for foreign traces.
CREATE PERFETTO TABLE molprof_sequence(
  -- Sequence, from 0.
  sequence LONG,
  -- Its batch.
  batch LONG,
  -- Row of the batch.
  row LONG,
  -- The prompt's molecule; null for a plain-text prompt.
  smiles STRING,
  -- Generated tokens with EOS, without the padding after it.
  tokens LONG,
  -- Text that opens a coordinate block: < unless the run had another format.
  block_open STRING,
  -- Text that closes a coordinate block: > unless the run had another format.
  block_close STRING,
  -- Args with the arrays of its tokens.
  arg_set_id ARGSETID
) AS
SELECT
  EXTRACT_ARG(arg_set_id, 'args.sequence') AS sequence,
  EXTRACT_ARG(arg_set_id, 'args.batch') AS batch,
  EXTRACT_ARG(arg_set_id, 'args.row') AS row,
  EXTRACT_ARG(arg_set_id, 'args.smiles') AS smiles,
  EXTRACT_ARG(arg_set_id, 'args.tokens') AS tokens,
  IFNULL(EXTRACT_ARG(arg_set_id, 'args.block_open'), '<') AS block_open,
  IFNULL(EXTRACT_ARG(arg_set_id, 'args.block_close'), '>') AS block_close,
  arg_set_id
FROM slice
WHERE category = 'molprof.sequence'
ORDER BY sequence, id;

-- The values of arrays of sequences, by field and position. Keys are args.token_id[12], with the position in brackets.
CREATE PERFETTO VIEW _molprof_sequence_value AS
SELECT
  sequence.sequence,
  sequence.batch,
  CAST(SUBSTR(args.key, LENGTH(args.flat_key) + 2) AS INT) AS position,
  args.flat_key AS field,
  args.int_value,
  args.string_value,
  args.real_value
FROM molprof_sequence AS sequence
JOIN args USING (arg_set_id);

-- The slice of each token whose step was recorded.
CREATE PERFETTO TABLE _molprof_token_slice AS
SELECT
  id,
  ts,
  dur,
  EXTRACT_ARG(arg_set_id, 'args.sequence') AS sequence,
  EXTRACT_ARG(arg_set_id, 'args.position') AS position
FROM slice
WHERE category = 'molprof.token'
ORDER BY id;

-- Every generated token of the run, recorded or not, in order of sequence and position.
CREATE PERFETTO TABLE molprof_token(
  sequence LONG,
  batch LONG,
  -- Position in the sequence, from 0.
  position LONG,
  -- Step of the batch that generated it: its position, unless a step generated several tokens of a sequence.
  step LONG,
  -- The token's id.
  token_id LONG,
  -- Its text.
  text STRING,
  -- free, copy, junk, filler or eos.
  kind STRING,
  -- Coordinate block that it belongs to, from 0; -1 outside any.
  block LONG,
  -- The token's slice; null where its step was not recorded.
  slice_id JOINID(slice.id),
  -- Start of its step, or of its share of a step with several, ns since the trace's earliest event; null as above.
  ts TIMESTAMP,
  -- Time of its step or share, ns; null as above.
  dur DURATION
) AS
WITH
  token AS (
    SELECT
      sequence,
      batch,
      position,
      MAX(IIF(field = 'args.token_id', int_value, NULL)) AS token_id,
      MAX(IIF(field = 'args.text', string_value, NULL)) AS text,
      MAX(IIF(field = 'args.kind', string_value, NULL)) AS kind,
      MAX(IIF(field = 'args.block', int_value, NULL)) AS block,
      -- Present if a step generated several.
      MAX(IIF(field = 'args.step', int_value, NULL)) AS step
    FROM _molprof_sequence_value
    WHERE field IN ('args.token_id', 'args.text', 'args.kind', 'args.block', 'args.step')
    GROUP BY sequence, batch, position
  )
SELECT
  token.sequence,
  token.batch,
  token.position,
  IFNULL(token.step, token.position) AS step,
  token.token_id,
  token.text,
  token.kind,
  token.block,
  shown.id AS slice_id,
  shown.ts,
  shown.dur
FROM token
LEFT JOIN _molprof_token_slice AS shown ON shown.sequence = token.sequence AND shown.position = token.position
ORDER BY token.sequence, token.position;
