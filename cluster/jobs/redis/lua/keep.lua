-- End an upload and keep it as a file, on which jobs may begin.
--
-- Keys: common.lua. ARGV: 3 header, 4 note, 5 ms for which it is kept
-- Reply: 1 kept; 0 no such upload, or a part of it is lost

if get('state') ~= 'uploading' or get('kept') ~= '' or lost_part() then return 0 end
local due = NOW + tonumber(ARGV[5])
call('HSET', RECORD, 'header', ARGV[3], 'note', ARGV[4], 'kept', 'file', 'created', text(NOW), 'due', text(due))
call('ZADD', DUE, due, ID)
call('ZADD', FILES, 0, index_member(get('tenant')))
return 1
