-- Return the records of all announcements that are not over.

local all, records = kept(), {}
for i = 2, #all, 2 do
  records[#records + 1] = string.match(all[i], '^%d+ (.*)$')
end
return records
