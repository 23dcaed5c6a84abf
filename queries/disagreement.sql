-- Disagreement: each token's probability before the logits processor masks, from an untimed pass.
--
-- Example:
--   SELECT sequence, position, text, choice, probability, rank, forbidden
--   FROM molprof_token_disagreement
--   ORDER BY probability, sequence, position
--   LIMIT 20;

INCLUDE PERFETTO MODULE molprof.tokens;

-- One row per generated token, in order of sequence and position. Empty where the run did not record disagreement.
CREATE PERFETTO TABLE molprof_token_disagreement(
  -- Sequence, from 0.
  sequence LONG,
  -- Position in the sequence, from 0.
  position LONG,
  -- The token's text.
  text STRING,
  -- free, copy, junk, filler or eos: the kind of token by the text.
  kind STRING,
  -- Coordinate block that it belongs to, from 0; -1 outside any.
  block LONG,
  -- copy: all other tokens were forbidden; free: some were; open: none was.
  choice STRING,
  -- Probability that the model gave this token before any was forbidden, 0 to 1.
  probability DOUBLE,
  -- Tokens that the model rated higher; 0 for its first choice.
  rank LONG,
  -- 1 if the model's first choice was forbidden, else 0.
  forbidden LONG,
  -- Probability that the model gave to all tokens that were forbidden, 0 to 1; null if not recorded.
  removed DOUBLE,
  -- 1 if the tokenizer cuts the text of the answer otherwise at this token, else 0; null if not recorded.
  unlike LONG
) AS
WITH
  examined AS (
    SELECT
      sequence,
      position,
      MAX(IIF(field = 'args.choice', string_value, NULL)) AS choice,
      -- A probability of 0 or 1 is stored as an integer.
      MAX(IIF(field = 'args.probability', IFNULL(real_value, int_value), NULL)) AS probability,
      MAX(IIF(field = 'args.rank', int_value, NULL)) AS rank,
      MAX(IIF(field = 'args.forbidden', int_value, NULL)) AS forbidden,
      MAX(IIF(field = 'args.removed', IFNULL(real_value, int_value), NULL)) AS removed,
      MAX(IIF(field = 'args.unlike', int_value, NULL)) AS unlike
    FROM _molprof_sequence_value
    WHERE field IN (
      'args.probability', 'args.rank', 'args.choice', 'args.forbidden', 'args.removed', 'args.unlike'
    )
    GROUP BY sequence, position
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
  examined.forbidden,
  examined.removed,
  examined.unlike
FROM molprof_token AS token
JOIN examined ON examined.sequence = token.sequence AND examined.position = token.position
ORDER BY token.sequence, token.position;

-- Tokens by what was left to choose: copy, free and open, those that occur.
CREATE PERFETTO VIEW molprof_disagreement_summary(
  -- copy, free or open.
  choice STRING,
  -- Tokens.
  tokens LONG,
  -- Mean probability that the model gave them, 0 to 1.
  mean_probability DOUBLE,
  -- Share of them that were the model's first choice, 0 to 1.
  first_choice_ratio DOUBLE,
  -- Share of them where the model's first choice was forbidden, 0 to 1.
  forbidden_ratio DOUBLE
) AS
SELECT
  choice,
  COUNT() AS tokens,
  AVG(probability) AS mean_probability,
  AVG(rank = 0) AS first_choice_ratio,
  AVG(forbidden) AS forbidden_ratio
FROM molprof_token_disagreement
GROUP BY choice
ORDER BY choice;
