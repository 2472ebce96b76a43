-- MessagePack as Redis' `cmsgpack` writes and reads it.
local R = ...
local byte, char, concat, floor, frexp, ldexp, sub = string.byte, string.char, table.concat, math.floor, math.frexp, math.ldexp, string.sub
local next, pairs, type, new_list = next, pairs, type, R.new_list

local function copied(value)
  if type(value) ~= 'table' then
    -- Redis writes the negative of zero as an integer.
    if value == 0 then return 0 end
    return value
  end
  local n = #value
  local out = new_list(n)
  for i = 1, n do
    local one = value[i]
    if type(one) == 'table' or one == 0 then one = copied(one) end
    out[i] = one
  end
  for key, one in next, value, n > 0 and n or nil do out[key] = copied(one) end
  return out
end

local function big_endian(n, width)
  local bytes = {}
  for i = width, 1, -1 do
    bytes[i] = char(n % 256)
    n = floor(n / 256)
  end
  return concat(bytes)
end

local function packed_integer(n)
  if n >= 0 then
    if n < 128 then return char(n) end
    if n < 256 then return '\204' .. char(n) end
    if n < 65536 then return '\205' .. big_endian(n, 2) end
    if n < 4294967296 then return '\206' .. big_endian(n, 4) end
    return '\207' .. big_endian(floor(n / 4294967296), 4) .. big_endian(n % 4294967296, 4)
  end
  if n >= -32 then return char(256 + n) end
  if n >= -128 then return '\208' .. char(256 + n) end
  if n >= -32768 then return '\209' .. big_endian(65536 + n, 2) end
  if n >= -2147483648 then return '\210' .. big_endian(4294967296 + n, 4) end
  return '\211' .. big_endian(4294967296 + floor(n / 4294967296), 4) .. big_endian(n % 4294967296, 4)
end

local function packed_float(n)
  local sign = (n < 0 or 1 / n < 0) and 128 or 0
  if n ~= n then return '\203\255\248\0\0\0\0\0\0' end
  if n == math.huge or n == -math.huge then return '\202' .. char(sign + 127) .. '\128\0\0' end
  local part, power = frexp(math.abs(n))
  -- A number of which 32 bits keep everything takes 32.
  local short = ldexp(part, 24)
  if short % 1 == 0 and power >= -125 and power <= 128 then
    local exponent = power + 126
    return '\202' .. char(sign + floor(exponent / 2)) .. big_endian((exponent % 2) * 8388608 + short - 8388608, 3)
  end
  local exponent = power + 1022
  if exponent <= 0 then part, exponent = ldexp(part, exponent - 1), 0 end
  local mantissa = ldexp(part, 53) - (exponent > 0 and 4503599627370496 or 0)
  return '\203' .. char(sign + floor(exponent / 16))
    .. char((exponent % 16) * 16 + floor(mantissa / 281474976710656)) .. big_endian(mantissa % 281474976710656, 6)
end

local function head(n, small, few, width16, width32)
  if n < few then return char(small + n) end
  if n < 65536 then return width16 .. big_endian(n, 2) end
  return width32 .. big_endian(n, 4)
end

local pack
local function packed_table(value)
  local count, largest, is_list = 0, 0, true
  for key in pairs(value) do
    count = count + 1
    if type(key) == 'number' and key > 0 and key % 1 == 0 then
      if key > largest then largest = key end
    else
      is_list = false
    end
  end
  local parts = {}
  if is_list and largest == count then
    parts[1] = head(count, 144, 16, '\220', '\221')
    for i = 1, count do parts[i + 1] = pack(value[i]) end
  else
    parts[1] = head(count, 128, 16, '\222', '\223')
    for key, one in pairs(value) do parts[#parts + 1] = pack(key) .. pack(one) end
  end
  return concat(parts)
end

function pack(value)
  local kind = type(value)
  if kind == 'string' then
    local n = #value
    if n >= 32 and n < 256 then return '\217' .. char(n) .. value end
    return head(n, 160, 32, '\218', '\219') .. value
  end
  if kind == 'number' then
    if value % 1 == 0 and value < 9223372036854775808 and value >= -9223372036854775808 then
      return packed_integer(value)
    end
    return packed_float(value)
  end
  if kind == 'boolean' then return value and '\195' or '\194' end
  if kind == 'table' then return packed_table(value) end
  return '\192'
end

local function bad() R.fail('ERR user_script:?: Bad data format in input.') end

local function unsigned(s, at, width)
  if width == 2 then
    local high, low = byte(s, at, at + 1)
    return high * 256 + (low or bad())
  end
  local n = 0
  for i = at, at + width - 1 do n = n * 256 + (byte(s, i) or bad()) end
  return n
end

local function signed(s, at, width)
  local n, bits = unsigned(s, at, width), 256 ^ width
  if width == 8 then
    local high = unsigned(s, at, 4)
    if high >= 2147483648 then high = high - 4294967296 end
    return high * 4294967296 + unsigned(s, at + 4, 4)
  end
  return n >= bits / 2 and n - bits or n
end

local function float32(s, at)
  local bits = unsigned(s, at, 4)
  local sign = bits >= 2147483648 and -1 or 1
  local exponent, mantissa = floor(bits / 8388608) % 256, bits % 8388608
  if exponent == 255 then return mantissa == 0 and sign * math.huge or 0 / 0 end
  if exponent == 0 then return sign * ldexp(mantissa, -149) end
  return sign * ldexp(mantissa + 8388608, exponent - 150)
end

local function float64(s, at)
  local high, low = unsigned(s, at, 4), unsigned(s, at + 4, 4)
  local sign = high >= 2147483648 and -1 or 1
  local exponent, mantissa = floor(high / 1048576) % 2048, (high % 1048576) * 4294967296 + low
  if exponent == 2047 then return mantissa == 0 and sign * math.huge or 0 / 0 end
  if exponent == 0 then return sign * ldexp(mantissa, -1074) end
  return sign * ldexp(mantissa + 4503599627370496, exponent - 1075)
end

local unpack_at
local function text_at(s, at, n)
  if at + n - 1 > #s then bad() end
  return sub(s, at, at + n - 1), at + n
end

local function list_at(s, at, n)
  local out = new_list(math.min(n, #s))
  for i = 1, n do
    -- Short strings and small numbers, which are most, need no call.
    local kind = byte(s, at)
    if kind and kind < 128 then
      out[i], at = kind, at + 1
    elseif kind and kind >= 160 and kind < 192 and at + kind - 160 <= #s then
      out[i], at = sub(s, at + 1, at + kind - 160), at + kind - 159
    else
      out[i], at = unpack_at(s, at)
    end
  end
  return out, at
end

local function map_at(s, at, n)
  local out = {}
  for _ = 1, n do
    local key
    key, at = unpack_at(s, at)
    out[key], at = unpack_at(s, at)
  end
  return out, at
end

local READERS = {
  [192] = function(_, at) return nil, at end,
  [194] = function(_, at) return false, at end,
  [195] = function(_, at) return true, at end,
  [202] = function(s, at) return float32(s, at), at + 4 end,
  [203] = function(s, at) return float64(s, at), at + 8 end,
  [204] = function(s, at) return unsigned(s, at, 1), at + 1 end,
  [205] = function(s, at) return unsigned(s, at, 2), at + 2 end,
  [206] = function(s, at) return unsigned(s, at, 4), at + 4 end,
  [207] = function(s, at) return unsigned(s, at, 8), at + 8 end,
  [208] = function(s, at) return signed(s, at, 1), at + 1 end,
  [209] = function(s, at) return signed(s, at, 2), at + 2 end,
  [210] = function(s, at) return signed(s, at, 4), at + 4 end,
  [211] = function(s, at) return signed(s, at, 8), at + 8 end,
  [217] = function(s, at) return text_at(s, at + 1, unsigned(s, at, 1)) end,
  [218] = function(s, at) return text_at(s, at + 2, unsigned(s, at, 2)) end,
  [219] = function(s, at) return text_at(s, at + 4, unsigned(s, at, 4)) end,
  [220] = function(s, at) return list_at(s, at + 2, unsigned(s, at, 2)) end,
  [221] = function(s, at) return list_at(s, at + 4, unsigned(s, at, 4)) end,
  [222] = function(s, at) return map_at(s, at + 2, unsigned(s, at, 2)) end,
  [223] = function(s, at) return map_at(s, at + 4, unsigned(s, at, 4)) end,
}

function unpack_at(s, at)
  local kind = byte(s, at)
  if not kind then bad() end
  if kind < 128 then return kind, at + 1 end
  if kind >= 224 then return kind - 256, at + 1 end
  if kind >= 160 and kind < 192 then return text_at(s, at + 1, kind - 160) end
  if kind < 144 then return map_at(s, at + 1, kind - 128) end
  if kind < 160 then return list_at(s, at + 1, kind - 144) end
  local read = READERS[kind]
  if not read then bad() end
  return read(s, at + 1)
end

-- Return the bytes of a stored string.
function R.bytes(value)
  if type(value) == 'table' then return pack(value.packed) end
  return value
end

R.cmsgpack = {
  pack = function(value) return {kind = 'packed', packed = copied(value)} end,
  unpack = function(value)
    if type(value) == 'table' then return copied(value.packed) end
    return (unpack_at(value, 1))
  end,
}
