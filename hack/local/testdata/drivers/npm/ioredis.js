// SPDX-License-Identifier: Apache-2.0
// ioredis against a compute shard. See hack/local/drivers_test.go for what every driver does. The driver has no pool of connections.
'use strict';
const assert = require('node:assert/strict');
const { once } = require('node:events');
const Redis = require('ioredis');

const { FARPOOL_HOST: host, FARPOOL_PORT: port, FARPOOL_LOCKED_PORT: locked, FARPOOL_PASSWORD: password, FARPOOL_SOCKET: path } = process.env;
const connect = (options) => {
  const client = new Redis(options);
  client.on('error', (error) => console.error(error));
  return client;
};
// The driver tells by an event what a server refused while they connected.
const refusal = async (options, use) => {
  const client = new Redis(options);
  const [error] = await once(client, 'error');
  assert(error instanceof Redis.ReplyError);
  await use?.(client);
  client.disconnect();
  return error.message;
};
const rejects = (promise, words) =>
  assert.rejects(promise, (error) => {
    assert(error instanceof Redis.ReplyError);
    assert.match(error.message, words);
    return true;
  });

async function connections() {
  assert.match(await refusal({ host, port: locked }), /NOAUTH/);
  assert.match(await refusal({ host, port: locked, password: 'wrong' }), /WRONGPASS/);
  const alone = connect({ host, port: locked, password });
  assert.equal(await alone.ping(), 'PONG');
  await alone.quit();
  const named = connect({ host, port: locked, username: 'default', password, connectionName: 'ioredis' });
  assert.equal(await named.client('GETNAME'), 'ioredis');
  assert.match(await named.client('INFO'), / lib-name=ioredis /);
  assert.deepEqual(await named.config('GET', 'databases'), ['databases', '1']);
  await named.quit();
  const url = connect(`redis://default:${encodeURIComponent(password)}@${host}:${locked}/0`);
  assert.equal(await url.ping(), 'PONG');
  await url.quit();
  // It goes on in database 0, where a key of another application may have the same name.
  const other = await refusal({ host, port, db: 1 }, async (client) => assert.equal(await client.set('ioredis:db', '1'), 'OK'));
  assert.match(other, /DB index is out of range/);
  const local = connect(path);
  assert.equal(await local.get('ioredis:db'), '1');
  await local.quit();
}

async function strings(client) {
  const value = Buffer.from(Array.from({ length: 25600 }, (_, i) => i % 256));
  await client.set('ioredis:binary', value);
  assert.deepEqual(await client.getBuffer('ioredis:binary'), value);
  await client.del('ioredis:nx');
  assert.equal(await client.set('ioredis:nx', '1', 'EX', 100, 'NX'), 'OK');
  assert.equal(await client.set('ioredis:nx', '2', 'NX'), null);
  assert((await client.ttl('ioredis:nx')) > 90);
  assert.equal(await client.incrby('ioredis:nx', 41), 42);
  await rejects(client.incr('ioredis:binary'), /not an integer/);
  assert.equal(await client.mset({ 'ioredis:a': '1', 'ioredis:b': '2' }), 'OK');
  assert.deepEqual(await client.mget('ioredis:a', 'ioredis:b', 'ioredis:none'), ['1', '2', null]);
  assert.equal(await client.del('ioredis:a', 'ioredis:b', 'ioredis:none'), 2);
  const keys = Array.from({ length: 300 }, (_, i) => `ioredis:scan:${i}`);
  const pipeline = client.pipeline();
  for (const key of keys) pipeline.setex(key, 1000, 'x');
  assert.deepEqual(await pipeline.exec(), Array(300).fill([null, 'OK']));
  const found = new Set();
  for await (const some of client.scanStream({ match: 'ioredis:scan:*', count: 50 })) for (const key of some) found.add(key);
  assert.deepEqual([...found].sort(), keys.sort());
}

async function hashes(client) {
  await client.del('ioredis:hash');
  assert.equal(await client.hset('ioredis:hash', { one: 1, two: 2 }), 2);
  assert.equal(await client.hincrby('ioredis:hash', 'one', 9), 10);
  assert.deepEqual(await client.hgetall('ioredis:hash'), { one: '10', two: '2' });
  assert.equal(await client.expire('ioredis:hash', 100), 1);
  await rejects(client.get('ioredis:hash'), /WRONGTYPE/);
}

async function transactions(client) {
  const done = await client.multi().set('ioredis:count', '1').incr('ioredis:count').expire('ioredis:count', 100).exec();
  assert.deepEqual(done, [[null, 'OK'], [null, 2], [null, 1]]);
  const other = connect({ host, port });
  await client.watch('ioredis:count');
  await other.incr('ioredis:count');
  assert.equal(await client.multi().set('ioredis:count', '0').exec(), null);
  assert.equal(await other.get('ioredis:count'), '3');
  await other.quit();
  await assert.rejects(client.multi().set('ioredis:x', '1').set('ioredis:y', '2').exec(), (error) => {
    assert.match(error.message, /^EXECABORT.*all commands of a transaction of this pool have one key/);
    assert.match(error.previousErrors[0].message, /all commands of a transaction of this pool have one key/);
    return error instanceof Redis.ReplyError;
  });
  assert.equal(await client.exists('ioredis:x', 'ioredis:y'), 0);
}

async function refusals(client) {
  await rejects(client.eval('return 1', 0), /unknown command 'eval'/);
  await rejects(client.blpop('ioredis:list', 1), /unknown command 'blpop'/);
  await rejects(client.publish('channel', 'x'), /unknown command 'publish'/);
  const listener = connect({ host, port });
  await rejects(listener.subscribe('channel'), /unknown command 'subscribe'/);
  await listener.quit();
  assert.equal(await client.ping(), 'PONG');
}

(async () => {
  await connections();
  const client = connect({ host, port });
  await strings(client);
  await hashes(client);
  await transactions(client);
  await refusals(client);
  await client.quit();
  console.log('ioredis', require('ioredis/package.json').version);
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
