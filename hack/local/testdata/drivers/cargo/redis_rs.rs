// SPDX-License-Identifier: Apache-2.0
// redis-rs against a compute shard: its blocking connections, alone and pooled by r2d2, and those of tokio. See hack/local/drivers_test.go for what every driver does.
use redis::{AsyncCommands, Client, Commands, Connection, ExistenceCheck, RedisResult, ScanOptions, SetExpiry, SetOptions};
use std::collections::{HashMap, HashSet};
use std::env;
use std::fmt::Debug;
use std::time::Duration;

const ONE_KEY: &str = "all commands of a transaction of this pool have one key";

// Panics unless the driver's error has these words.
fn refused<T: Debug>(answer: RedisResult<T>, words: &str) {
    let error = answer.expect_err(words);
    assert!(error.to_string().contains(words), "{error} does not say {words}");
}

struct Shards {
    open: String,   // host:port of a shard without a password
    locked: String, // host:port of a shard with the password
    password: String,
    socket: String,
}

fn shards() -> Shards {
    let get = |name: &str| env::var(format!("FARPOOL_{name}")).expect(name);
    let at = |port: &str| format!("{}:{}", get("HOST"), get(port));
    // The password as part of a URL.
    let password = get("PASSWORD").bytes().map(|byte| format!("%{byte:02x}")).collect();
    Shards { open: at("PORT"), locked: at("LOCKED_PORT"), password, socket: get("SOCKET") }
}

fn connect(url: &str) -> RedisResult<Connection> {
    Client::open(url)?.get_connection_with_timeout(Duration::from_secs(10))
}

// Returns the driver's version, as the driver tells it to servers.
fn connections(at: &Shards, parameters: &str) -> RedisResult<String> {
    let Shards { open, locked, password, socket } = at;
    // With RESP3 the connection is not made; with RESP2 the first command is refused.
    refused(connect(&format!("redis://{locked}/{parameters}")).and_then(|mut stranger| stranger.get::<_, Option<String>>("x")), "NOAUTH");
    // With RESP2 the driver says so in its own words.
    let wrong = if parameters.is_empty() { "Password authentication failed" } else { "WRONGPASS" };
    refused(connect(&format!("redis://:wrong@{locked}/{parameters}")).map(|_| ()), wrong);
    connect(&format!("redis://:{password}@{locked}/{parameters}"))?.ping::<()>()?;
    let mut named = connect(&format!("redis://default:{password}@{locked}/0{parameters}"))?;
    named.client_setname::<_, ()>("redis-rs")?;
    assert_eq!(named.client_getname::<Option<String>>()?.as_deref(), Some("redis-rs"));
    let info: String = redis::cmd("CLIENT").arg("INFO").query(&mut named)?;
    let said: HashMap<&str, &str> = info.split_whitespace().filter_map(|each| each.split_once('=')).collect();
    assert_eq!(said["lib-name"], "redis-rs");
    refused(connect(&format!("redis://{open}/1{parameters}")).map(|_| ()), "DB index is out of range");
    connect(&format!("redis+unix://{socket}{parameters}"))?.ping::<()>()?;
    Ok(said["lib-ver"].to_string())
}

fn strings(connection: &mut Connection) -> RedisResult<()> {
    let value: Vec<u8> = (0..25600).map(|i| i as u8).collect();
    connection.set::<_, _, ()>("redis-rs:binary", &value)?;
    assert_eq!(connection.get::<_, Vec<u8>>("redis-rs:binary")?, value);
    connection.del::<_, ()>("redis-rs:nx")?;
    let once = SetOptions::default().conditional_set(ExistenceCheck::NX).with_expiration(SetExpiry::EX(100));
    assert_eq!(connection.set_options::<_, _, Option<String>>("redis-rs:nx", 1, once.clone())?.as_deref(), Some("OK"));
    assert_eq!(connection.set_options::<_, _, Option<String>>("redis-rs:nx", 2, once)?, None);
    assert!((91..=100).contains(&connection.ttl::<_, i64>("redis-rs:nx")?));
    assert_eq!(connection.incr::<_, _, i64>("redis-rs:nx", 41)?, 42);
    refused(connection.incr::<_, _, i64>("redis-rs:binary", 1), "not an integer");
    connection.mset::<_, _, ()>(&[("redis-rs:a", 1), ("redis-rs:b", 2)])?;
    assert_eq!(connection.mget::<_, Vec<Option<i64>>>(&["redis-rs:a", "redis-rs:b", "redis-rs:none"])?, [Some(1), Some(2), None]);
    assert_eq!(connection.del::<_, i64>(&["redis-rs:a", "redis-rs:b", "redis-rs:none"])?, 2);
    let keys: HashSet<String> = (0..300).map(|i| format!("redis-rs:scan:{i}")).collect();
    let mut pipeline = redis::pipe();
    for key in &keys {
        pipeline.set_ex(key, "x", 1000);
    }
    assert_eq!(pipeline.query::<Vec<String>>(connection)?, vec!["OK"; 300]);
    let options = ScanOptions::default().with_pattern("redis-rs:scan:*").with_count(50);
    assert_eq!(connection.scan_options(options)?.collect::<RedisResult<HashSet<String>>>()?, keys);
    Ok(())
}

fn hashes(connection: &mut Connection) -> RedisResult<()> {
    connection.del::<_, ()>("redis-rs:hash")?;
    connection.hset_multiple::<_, _, _, ()>("redis-rs:hash", &[("one", 1), ("two", 2)])?;
    assert_eq!(connection.hincr::<_, _, _, i64>("redis-rs:hash", "one", 9)?, 10);
    let wanted = HashMap::from([("one".to_string(), 10), ("two".to_string(), 2)]);
    assert_eq!(connection.hgetall::<_, HashMap<String, i64>>("redis-rs:hash")?, wanted);
    assert_eq!(connection.hscan("redis-rs:hash")?.collect::<RedisResult<HashMap<String, i64>>>()?, wanted);
    assert!(connection.expire::<_, bool>("redis-rs:hash", 100)?);
    refused(connection.get::<_, String>("redis-rs:hash"), "WRONGTYPE");
    Ok(())
}

fn transactions(connection: &mut Connection, other: &mut Connection) -> RedisResult<()> {
    let key = "redis-rs:count";
    let done: (String, i64, bool) = redis::pipe().atomic().set(key, 1).incr(key, 1).expire(key, 100).query(connection)?;
    assert_eq!(done, ("OK".to_string(), 2, true));
    // The driver's own loop: what changes the key the first time makes it try again.
    let mut tries = 0;
    let doubled: Vec<i64> = redis::transaction(connection, &[key], |connection, pipeline| {
        tries += 1;
        let count: i64 = connection.get(key)?;
        if tries == 1 {
            other.incr::<_, _, ()>(key, 1)?;
        }
        pipeline.set(key, 2 * count).ignore().incr(key, 1).query(connection)
    })?;
    assert_eq!((doubled, tries), (vec![7], 2));
    refused(redis::pipe().atomic().set("redis-rs:x", 1).set("redis-rs:y", 2).query::<Vec<String>>(connection), ONE_KEY);
    assert_eq!(connection.exists::<_, i64>(&["redis-rs:x", "redis-rs:y"])?, 0);
    Ok(())
}

// Eight threads have four connections.
fn pools(url: &str) -> RedisResult<()> {
    let pool = r2d2::Pool::builder().max_size(4).build(Client::open(url)?).expect("a pool of connections");
    pool.get().expect("a connection").del::<_, ()>("redis-rs:pool")?;
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..25 {
                    pool.get().expect("a connection").incr::<_, _, ()>("redis-rs:pool", 1).expect("INCR");
                }
            });
        }
    });
    assert_eq!(pool.get().expect("a connection").get::<_, i64>("redis-rs:pool")?, 200);
    Ok(())
}

fn refusals(connection: &mut Connection, mut listener: Connection) -> RedisResult<()> {
    refused(redis::cmd("EVAL").arg("return 1").arg(0).query::<i64>(connection), "unknown command 'EVAL'");
    refused(redis::Script::new("return 1").invoke::<i64>(connection), "unknown command 'EVALSHA'");
    refused(connection.blpop::<_, Option<String>>("redis-rs:list", 1.0), "unknown command 'BLPOP'");
    refused(connection.publish::<_, _, i64>("channel", "x"), "unknown command 'PUBLISH'");
    // Here the driver drops the server's error, which with_tokio sees. It sends UNSUBSCRIBE and PUNSUBSCRIBE before the next command.
    listener.as_pubsub().subscribe("channel")?;
    listener.set::<_, _, ()>("redis-rs:unsubscribed", 7)?;
    for _ in 0..3 {
        assert_eq!(listener.get::<_, i64>("redis-rs:unsubscribed")?, 7);
    }
    connection.ping()
}

// Tasks share one connection, as programs with tokio do.
async fn with_tokio(url: &str) -> RedisResult<()> {
    let client = Client::open(url)?;
    let multiplexed = client.get_multiplexed_async_connection().await?;
    let mut manager = client.get_connection_manager().await?;
    manager.del::<_, ()>("redis-rs:tasks").await?;
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let mut connection = multiplexed.clone();
            tokio::spawn(async move {
                for _ in 0..25 {
                    connection.incr::<_, _, ()>("redis-rs:tasks", 1).await.expect("INCR");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a task");
    }
    assert_eq!(manager.get::<_, i64>("redis-rs:tasks").await?, 200);
    let done: (String, i64) = redis::pipe().atomic().set("redis-rs:tasks", 1).incr("redis-rs:tasks", 1).query_async(&mut manager).await?;
    assert_eq!(done, ("OK".to_string(), 2));
    refused(redis::pipe().atomic().set("redis-rs:x", 1).set("redis-rs:y", 2).query_async::<Vec<String>>(&mut manager).await, ONE_KEY);
    refused(manager.blpop::<_, Option<String>>("redis-rs:list", 1.0).await, "unknown command 'BLPOP'");
    refused(client.get_async_pubsub().await?.subscribe("channel").await, "unknown command 'SUBSCRIBE'");
    manager.ping().await
}

fn main() -> RedisResult<()> {
    let at = shards();
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let mut version = String::new();
    for parameters in ["", "?protocol=resp3"] {
        version = connections(&at, parameters)?;
        let url = format!("redis://{}/{parameters}", at.open);
        let (mut connection, mut other) = (connect(&url)?, connect(&url)?);
        strings(&mut connection)?;
        hashes(&mut connection)?;
        transactions(&mut connection, &mut other)?;
        refusals(&mut connection, other)?;
        pools(&url)?;
        tokio.block_on(with_tokio(&url))?;
    }
    println!("redis-rs {version}");
    Ok(())
}
