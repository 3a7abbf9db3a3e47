# SPDX-License-Identifier: Apache-2.0
# redis-rb against a compute shard. See hack/local/drivers_test.go for what every driver does.
require "erb"
require "redis"

HOST, PASSWORD = ENV.fetch("FARPOOL_HOST"), ENV.fetch("FARPOOL_PASSWORD")
PORT, LOCKED = ENV.fetch("FARPOOL_PORT").to_i, ENV.fetch("FARPOOL_LOCKED_PORT").to_i

def check(got, wanted)
  raise "got #{got.inspect}, and wanted #{wanted.inspect}" unless wanted === got
end

def refused(words)
  answer = yield
rescue Redis::BaseError => e
  raise "#{e.inspect} does not say #{words.inspect}" unless e.message.include?(words)
else
  raise "no error with #{words.inspect}: the answer was #{answer.inspect}"
end

refused("NOAUTH") { Redis.new(host: HOST, port: LOCKED).ping }
refused("WRONGPASS") { Redis.new(host: HOST, port: LOCKED, password: "wrong").ping }
check Redis.new(host: HOST, port: LOCKED, password: PASSWORD).ping, "PONG"
check Redis.new(url: "redis://default:#{ERB::Util.url_encode(PASSWORD)}@#{HOST}:#{LOCKED}/0", id: "redis-rb").client(:getname), "redis-rb"
refused("DB index is out of range") { Redis.new(host: HOST, port: PORT, db: 1).ping }
check Redis.new(path: ENV.fetch("FARPOOL_SOCKET")).ping, "PONG"

client = Redis.new(host: HOST, port: PORT)
value = (0..255).to_a.pack("C*") * 100
client.set("redis-rb:binary", value)
check client.get("redis-rb:binary").b, value
check client.set("redis-rb:nx", 1, nx: true, ex: 100), true
check client.set("redis-rb:nx", 2, nx: true), false
check client.ttl("redis-rb:nx"), 90..100
check client.incrby("redis-rb:nx", 41), 42
check client.mset("redis-rb:a", 1, "redis-rb:b", 2), "OK"
check client.mget("redis-rb:a", "redis-rb:b", "redis-rb:none"), ["1", "2", nil]
check client.del("redis-rb:a", "redis-rb:b"), 2

keys = (0...300).map { |i| "redis-rb:scan:#{i}" }
check client.pipelined { |pipe| keys.each { |key| pipe.setex(key, 1000, "x") } }, ["OK"] * 300
check client.scan_each(match: "redis-rb:scan:*", count: 50).to_a.uniq.sort, keys.sort

check client.hset("redis-rb:hash", { "one" => 1, "two" => 2 }), 2
check client.hincrby("redis-rb:hash", "one", 9), 10
check client.hgetall("redis-rb:hash"), { "one" => "10", "two" => "2" }
check client.hscan_each("redis-rb:hash").to_h, { "one" => "10", "two" => "2" }
refused("WRONGTYPE") { client.get("redis-rb:hash") }

check client.multi { |tx| tx.set("redis-rb:count", 1); tx.incr("redis-rb:count"); tx.expire("redis-rb:count", 100) }, ["OK", 2, true]
client.watch("redis-rb:count") do
  Redis.new(host: HOST, port: PORT).incr("redis-rb:count")
  check client.multi { |tx| tx.set("redis-rb:count", 0) }, nil
end
refused("all commands of a transaction of this pool have one key") { client.multi { |tx| tx.set("redis-rb:x", 1); tx.set("redis-rb:y", 2) } }
check client.exists("redis-rb:x", "redis-rb:y"), 0

client.del("redis-rb:shared")
4.times.map { Thread.new { 50.times { client.incr("redis-rb:shared") } } }.each(&:join)
check client.get("redis-rb:shared"), "200"

refused("unknown command 'eval'") { client.eval("return 1") }
refused("unknown command 'blpop'") { client.blpop("redis-rb:list", timeout: 1) }
refused("unknown command 'publish'") { client.publish("channel", "x") }
refused("unknown command 'subscribe'") { Redis.new(host: HOST, port: PORT).subscribe("channel") {} }
check client.ping, "PONG"
puts "redis-rb #{Redis::VERSION}"
