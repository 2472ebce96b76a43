-- Write a chunk of a journal.
--
-- ARGV: 4 token, 5 number of the journal, 6 number of the chunk, 7 chunk, 8 1 if the response has left the queue,
-- 9 id of the cluster's request, or "", 10 its resume token, or ""
-- Reply: 1 written; 0 not held

if not is_held(ARGV[4]) then return 0 end
if get('journal') ~= ARGV[5] then
  call('UNLINK', JOURNAL)
  call('HSET', RESPONSE, 'journal', ARGV[5])
end
if ARGV[8] == '1' then call('HSET', RESPONSE, 'started', 1) end
if ARGV[9] ~= '' then call('HSET', RESPONSE, 'run', ARGV[9]) end
if ARGV[10] ~= '' then call('HSET', RESPONSE, 'place', ARGV[10]) end
if ARGV[7] ~= '' then call('HSET', JOURNAL, ARGV[6], ARGV[7]) end
return 1
