-- claim: what the rivals ask Redis, once per request: window, stock, already bought, then take the unit.
-- KEYS  1 sale (hash: opens_ms, closes_ms)  2 buyers (set)  3 stock (number)  4 orders (stream)
-- ARGV  1 buyer  2 order id  3 now in milliseconds
-- RETURNS 0 granted, 1 sold out, 2 already bought, 3 not open
-- COST O(1), in as few calls as it takes: to add the buyer also tells whether he was there.
local window = redis.call('HMGET', KEYS[1], 'opens_ms', 'closes_ms')
local now = tonumber(ARGV[3])
if now < tonumber(window[1]) or now >= tonumber(window[2]) then return 3 end
if tonumber(redis.call('GET', KEYS[3])) <= 0 then return 1 end
if redis.call('SADD', KEYS[2], ARGV[1]) == 0 then return 2 end
redis.call('DECR', KEYS[3])
redis.call('XADD', KEYS[4], '*', 'buyer', ARGV[1], 'order', ARGV[2])
return 0
