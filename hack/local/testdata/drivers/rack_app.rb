# SPDX-License-Identifier: Apache-2.0
# redis-rack's session store in a pool: an application of Rack that counts visits, two browsers, an expiry, a log-out.
require "rack"
require "rack/mock"
require "redis-rack"

at = { host: ENV.fetch("FARPOOL_HOST"), port: ENV.fetch("FARPOOL_PORT").to_i, db: 0, namespace: "rack" }
visits = lambda do |env|
  session = env["rack.session"]
  env["rack.session.options"][:drop] = true if env["PATH_INFO"] == "/logout"
  env["rack.session.options"][:renew] = true if env["PATH_INFO"] == "/rotate"
  [200, {}, [(session["visits"] = (session["visits"] || 0) + 1).to_s]]
end
APP = Rack::Session::Redis.new(visits, redis_server: at, expire_after: 500)

class Browser
  def get(path)
    answer = Rack::MockRequest.new(APP).get(path, @cookie ? { "HTTP_COOKIE" => @cookie } : {})
    @cookie = answer["Set-Cookie"][/\A[^;]*/] if answer["Set-Cookie"]
    answer.body
  end
  attr_reader :cookie
end

def check(got, wanted)
  raise "got #{got.inspect}, and wanted #{wanted.inspect}" unless wanted === got
end

anna, ben = Browser.new, Browser.new
(1..3).each { |n| check anna.get("/visit"), n.to_s }
check ben.get("/visit"), "1"
before = anna.cookie
check anna.get("/rotate"), "4"
check anna.cookie == before, false
check anna.get("/visit"), "5"
client = Redis.new(host: at[:host], port: at[:port])
keys = client.scan_each(match: "rack:*").to_a.uniq
check keys.size, 2
keys.each { |key| check client.ttl(key), 490..500 }
ben.get("/logout")
check client.scan_each(match: "rack:*").to_a.uniq.size, 1
check ben.get("/visit"), "1"
check anna.get("/visit"), "6"
puts "redis-rack #{Gem.loaded_specs.fetch("redis-rack").version}"
