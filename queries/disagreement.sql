-- Disagreement: what the model gave each token before the processor masked, in an untimed pass.
--
-- Example:
--   SELECT sequence, position, text, choice, probability, rank, forbidden
--   FROM molprof_token_disagreement
--   ORDER BY probability, sequence, position
--   LIMIT 20;

INCLUDE PERFETTO MODULE molprof.tokens;

-- One row per generated token, in order of sequence and position. Empty where the run recorded none of it.
CREATE PERFETTO TABLE molprof_token_disagreement(
  -- Sequence, from 0.
  sequence LONG,
  -- Place in the sequence, from 0.
  position LONG,
  -- The token's text.
  text STRING,
  -- free, copy, junk, filler or eos: what the token is by the text.
  kind STRING,
  -- Coordinate block that it belongs to, from 0; -1 outside any.
  block LONG,
  -- copy, all other tokens were forbidden; free, some were; open, none was.
  choice STRING,
  -- Share that the model gave this token among all, before any was forbidden, 0 to 1.
  probability DOUBLE,
  -- Tokens that the model gave more than this one; 0 for its first choice.
  rank LONG,
  -- 1 where the model's first choice was forbidden, else 0.
  forbidden LONG
)
AS
WITH
  -- Keys read args.rank[12]; the number in brackets is the position.
  cell AS (
    SELECT
      sequence.sequence,
      CAST(SUBSTR(args.key, LENGTH(args.flat_key) + 2) AS INT) AS position,
      args.flat_key AS field,
      args.int_value,
      args.string_value,
      -- A probability that is a whole number, 0 or 1, is kept as one.
      IFNULL(args.real_value, args.int_value) AS number
    FROM molprof_sequence AS sequence
    JOIN args
      USING (arg_set_id)
    WHERE
      args.flat_key IN ('args.probability', 'args.rank', 'args.choice', 'args.forbidden')
  ),
  examined AS (
    SELECT
      sequence,
      position,
      MAX(IIF(field = 'args.choice', string_value, NULL)) AS choice,
      MAX(IIF(field = 'args.probability', number, NULL)) AS probability,
      MAX(IIF(field = 'args.rank', int_value, NULL)) AS rank,
      MAX(IIF(field = 'args.forbidden', int_value, NULL)) AS forbidden
    FROM cell
    GROUP BY
      sequence,
      position
  )
SELECT
  token.sequence,
  token.position,
  token.text,
  token.kind,
  token.block,
  examined.choice,
  examined.probability,
  examined.rank,
  examined.forbidden
FROM molprof_token AS token
JOIN examined
  ON examined.sequence = token.sequence AND examined.position = token.position
ORDER BY
  token.sequence,
  token.position;

-- Tokens by what was left to choose: copy, free and open, as far as there are any.
CREATE PERFETTO VIEW molprof_disagreement_summary(
  -- copy, free or open.
  choice STRING,
  -- Tokens.
  tokens LONG,
  -- Mean share that the model gave them, 0 to 1.
  mean_probability DOUBLE,
  -- Of them, those that were the model's first choice, 0 to 1.
  first_choice_ratio DOUBLE,
  -- Of them, those where the model's first choice was forbidden, 0 to 1.
  forbidden_ratio DOUBLE
)
AS
SELECT
  choice,
  COUNT() AS tokens,
  AVG(probability) AS mean_probability,
  AVG(rank = 0) AS first_choice_ratio,
  AVG(forbidden) AS forbidden_ratio
FROM molprof_token_disagreement
GROUP BY
  choice
ORDER BY
  choice;
