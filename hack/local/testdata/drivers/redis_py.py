# SPDX-License-Identifier: Apache-2.0
# redis-py against a compute shard: version 4, which speaks RESP2, and later ones. See hack/local/drivers_test.go for what every driver does.
import os
import threading
import urllib.parse

import redis

HOST = os.environ["FARPOOL_HOST"]
PORT = int(os.environ["FARPOOL_PORT"])
LOCKED = int(os.environ["FARPOOL_LOCKED_PORT"])
PASSWORD = os.environ["FARPOOL_PASSWORD"]


def refused(error, words, do):
    try:
        answer = do()
    except error as e:
        assert words in str(e), f"{e!r} does not say {words!r}"
        return
    raise AssertionError(f"no {error.__name__} with {words!r}: the answer was {answer!r}")


FOUR = redis.VERSION[0] == 4


def connections():
    client = redis.Redis(HOST, LOCKED)
    refused(redis.AuthenticationError, "Authentication required" if FOUR else "HELLO must be called with the client already authenticated", client.ping)
    refused(redis.ResponseError if FOUR else redis.AuthenticationError, "invalid username-password pair", redis.Redis(HOST, LOCKED, password="wrong").ping)
    assert redis.Redis(HOST, LOCKED, password=PASSWORD).ping()
    assert redis.from_url(f"redis://default:{urllib.parse.quote(PASSWORD, safe='')}@{HOST}:{LOCKED}/0").ping()
    refused(redis.ResponseError, "DB index is out of range", redis.Redis(HOST, PORT, db=1).ping)
    assert redis.Redis(unix_socket_path=os.environ["FARPOOL_SOCKET"]).ping()
    named = redis.Redis(HOST, PORT, client_name="redis-py", health_check_interval=1)
    assert named.client_getname() == "redis-py"
    assert named.client_info()["name"] == "redis-py"
    assert named.config_get("databases") == {"databases": "1"}
    assert named.info()["redis_version"] >= "7.0" and named.dbsize() >= 0


def strings(client):
    value = bytes(range(256)) * 100
    assert client.set("redis-py:binary", value) and client.get("redis-py:binary") == value
    assert client.set("redis-py:nx", "1", nx=True, ex=100) and client.set("redis-py:nx", "2", nx=True) is None
    assert 90 < client.ttl("redis-py:nx") <= 100 and client.persist("redis-py:nx") and client.ttl("redis-py:nx") == -1
    assert client.getex("redis-py:nx", px=50000) == b"1" and 40000 < client.pttl("redis-py:nx") <= 50000
    assert client.mset({"redis-py:a": 1, "redis-py:b": 2})
    assert client.mget("redis-py:a", "redis-py:b", "redis-py:none") == [b"1", b"2", None]
    assert client.incr("redis-py:a", 41) == 42 and client.incrbyfloat("redis-py:b", 0.5) == 2.5
    refused(redis.ResponseError, "not an integer", lambda: client.incr("redis-py:binary"))
    assert client.append("redis-py:a", "!") == 3 and client.exists("redis-py:a", "redis-py:none") == 1
    assert client.delete("redis-py:a", "redis-py:b", "redis-py:nx") == 3
    written = {b"redis-py:scan:%d" % i for i in range(300)}
    with client.pipeline(transaction=False) as pipe:
        for key in written:
            pipe.set(key, "x")
        assert pipe.execute() == [True] * 300
    assert set(client.scan_iter("redis-py:scan:*", count=50)) == written


def hashes(client):
    client.delete("redis-py:hash")
    assert client.hset("redis-py:hash", mapping={"one": 1, "two": 2}) == 2 and client.hincrby("redis-py:hash", "one", 9) == 10
    assert client.hgetall("redis-py:hash") == {b"one": b"10", b"two": b"2"} and client.expire("redis-py:hash", 100)
    assert dict(client.hscan_iter("redis-py:hash")) == client.hgetall("redis-py:hash")
    refused(redis.ResponseError, "WRONGTYPE", lambda: client.get("redis-py:hash"))


def transactions(client):
    with client.pipeline() as pipe:
        pipe.set("redis-py:count", 1).incr("redis-py:count").expire("redis-py:count", 100)
        assert pipe.execute() == [True, 2, True]
    with client.pipeline() as pipe:
        pipe.watch("redis-py:count")
        client.incr("redis-py:count")
        pipe.multi()
        pipe.set("redis-py:count", 0)
        refused(redis.WatchError, "", pipe.execute)
    with client.pipeline() as pipe:
        pipe.set("redis-py:one", 1).set("redis-py:two", 2)
        refused(redis.ResponseError, "all commands of a transaction of this pool have one key", pipe.execute)
    assert client.exists("redis-py:one", "redis-py:two") == 0


def pools():
    client = redis.Redis(connection_pool=redis.BlockingConnectionPool(host=HOST, port=PORT, max_connections=4, timeout=30))
    client.delete("redis-py:pool")
    threads = [threading.Thread(target=lambda: [client.incr("redis-py:pool") for _ in range(50)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.get("redis-py:pool") == b"400"


def refusals(client):
    refused(redis.ResponseError, "unknown command 'EVAL'", lambda: client.eval("return 1", 0))
    refused(redis.ResponseError, "unknown command 'EVALSHA'", client.register_script("return 1"))
    client.delete("redis-py:lock")
    lock = client.lock("redis-py:lock", timeout=10)
    assert lock.acquire()
    refused(redis.ResponseError, "unknown command 'EVALSHA'", lock.release)
    refused(redis.ResponseError, "unknown command 'BLPOP'", lambda: client.blpop("redis-py:list", 1))
    refused(redis.ResponseError, "unknown command 'PUBLISH'", lambda: client.publish("channel", "x"))
    with client.pubsub() as listener:
        listener.subscribe("channel")
        refused(redis.ResponseError, "unknown command 'SUBSCRIBE'", lambda: listener.get_message(timeout=10))
    assert client.ping()


connections()
for protocol in [{}] if FOUR else [{}, {"protocol": 2}, {"protocol": 3}]:
    for client in (redis.Redis(HOST, PORT, **protocol), redis.Redis(unix_socket_path=os.environ["FARPOOL_SOCKET"], **protocol)):
        strings(client)
        hashes(client)
        transactions(client)
        refusals(client)
pools()
print("redis-py", redis.__version__)
