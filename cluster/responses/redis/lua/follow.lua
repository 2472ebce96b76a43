-- Read on, for a reader at another router.
--
-- ARGV: 4 number of the journal that the reader knows, 0 for any, 5 first chunk to read of it, 6 most chunks,
--       7 1 if the request is to be read too
-- Reply: {} there is none; {request, result, started, journal, ms since its creation, 1 if it has a lease else 0, 1 if
--         the lease has not ended else 0, chunks, id of the cluster's request, its resume token}

if not is_here() then return {} end
pass_when_full()
local ends = tonumber(call('ZSCORE', OPEN, MEMBER))
local journal = get('journal')
local known = journal == ARGV[4] or ARGV[4] == '0'
local first = known and tonumber(ARGV[5]) or 0
local chunks = {}
if get('result') == '' then
  call('HSET', RESPONSE, 'read', text(NOW))
  for number = first, first + tonumber(ARGV[6]) - 1 do
    local chunk = call('HGET', JOURNAL, text(number))
    if not chunk then break end
    chunks[#chunks + 1] = chunk
  end
end
return {ARGV[7] == '1' and get('request') or '', get('result'), get('started'), journal, NOW - (tonumber(get('created')) or NOW), ends and 1 or 0,
        ends and ends > NOW and 1 or 0, chunks, get('run'), get('place')}
