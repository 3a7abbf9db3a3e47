// SPDX-License-Identifier: Apache-2.0
// node-redis against a compute shard: version 4, in RESP2, and later ones, in RESP2 and RESP3. See hack/local/drivers_test.go for what every driver does.
'use strict';
const assert = require('node:assert/strict');
const redis = require('redis');

const { version } = require('redis/package.json');
const four = version.startsWith('4.');
const { FARPOOL_HOST: host, FARPOOL_PORT: port, FARPOOL_LOCKED_PORT: locked, FARPOOL_PASSWORD: password, FARPOOL_SOCKET: path } = process.env;
const connect = async (options) => {
  const client = redis.createClient(options);
  client.on('error', (error) => console.error(error));
  await client.connect();
  return client;
};
// The driver connects again whatever the server said, and tells of each error by an event.
const refusal = (options) =>
  new Promise((resolve) => {
    const client = redis.createClient({ ...options, socket: { ...options.socket, reconnectStrategy: () => new Error('once is enough') } });
    client.on('error', resolve);
    client.connect().catch((error) => resolve(error.originalError ?? error));
  });
const open = { socket: { host, port } };

async function connections() {
  const stranger = await connect({ socket: { host, port: locked } });
  await assert.rejects(stranger.get('x'), /NOAUTH/);
  await stranger.disconnect();
  assert.match((await refusal({ socket: { host, port: locked }, password: 'wrong' })).message, /WRONGPASS/);
  const named = await connect({ url: `redis://default:${encodeURIComponent(password)}@${host}:${locked}/0`, name: 'node-redis' });
  assert.equal(await named.clientGetName(), 'node-redis');
  assert.deepEqual({ ...(await named.configGet('databases')) }, { databases: '1' });
  await named.quit();
  assert.match((await refusal({ ...open, database: 1 })).message, /DB index is out of range/);
  const local = await connect({ socket: { path } });
  assert.equal(await local.ping(), 'PONG');
  await local.quit();
}

async function strings(client) {
  const value = Buffer.from(Array.from({ length: 25600 }, (_, i) => i % 256));
  await client.set('node-redis:binary', value);
  const read = four
    ? client.get(redis.commandOptions({ returnBuffers: true }), 'node-redis:binary')
    : client.withTypeMapping({ [redis.RESP_TYPES.BLOB_STRING]: Buffer }).get('node-redis:binary');
  assert.deepEqual(await read, value);
  await client.del('node-redis:nx');
  assert.equal(await client.set('node-redis:nx', '1', { NX: true, EX: 100 }), 'OK');
  assert.equal(await client.set('node-redis:nx', '2', { NX: true }), null);
  const ttl = await client.ttl('node-redis:nx');
  assert(ttl > 90 && ttl <= 100);
  assert.equal(await client.incrBy('node-redis:nx', 41), 42);
  assert.equal(await client.mSet({ 'node-redis:a': '1', 'node-redis:b': '2' }), 'OK');
  assert.deepEqual(await client.mGet(['node-redis:a', 'node-redis:b', 'node-redis:none']), ['1', '2', null]);
  assert.equal(await client.del(['node-redis:a', 'node-redis:b']), 2);
  // Commands that are not awaited one by one go out as one pipeline.
  const keys = Array.from({ length: 300 }, (_, i) => `node-redis:scan:${i}`);
  await Promise.all(keys.map((key) => client.setEx(key, 1000, 'x')));
  const found = new Set();
  for await (const some of client.scanIterator({ MATCH: 'node-redis:scan:*', COUNT: 50 })) for (const key of [some].flat()) found.add(key);
  assert.deepEqual([...found].sort(), keys.sort());
}

async function hashes(client) {
  await client.del('node-redis:hash');
  assert.equal(await client.hSet('node-redis:hash', { one: 1, two: 2 }), 2);
  assert.equal(await client.hIncrBy('node-redis:hash', 'one', 9), 10);
  assert.deepEqual({ ...(await client.hGetAll('node-redis:hash')) }, { one: '10', two: '2' });
  await assert.rejects(client.get('node-redis:hash'), /WRONGTYPE/);
}

async function transactions(client, isolate) {
  const done = await client.multi().set('node-redis:count', '1').incr('node-redis:count').expire('node-redis:count', 100).exec();
  assert.deepEqual(done, ['OK', 2, four ? true : 1]);
  await isolate(async (isolated) => {
    await isolated.watch('node-redis:count');
    await client.incr('node-redis:count');
    await assert.rejects(isolated.multi().set('node-redis:count', '0').exec(), redis.WatchError);
  });
  assert.equal(await client.get('node-redis:count'), '3');
  await assert.rejects(client.multi().set('node-redis:x', '1').set('node-redis:y', '2').exec(), /one key/);
  assert.equal(await client.exists(['node-redis:x', 'node-redis:y']), 0);
}

async function pools(client, isolate) {
  await client.del('node-redis:pool');
  await Promise.all(Array.from({ length: 200 }, () => isolate((isolated) => isolated.incr('node-redis:pool'))));
  assert.equal(await client.get('node-redis:pool'), '200');
}

async function refusals(client) {
  await assert.rejects(client.eval('return 1'), /unknown command 'EVAL'/);
  await assert.rejects(client.blPop('node-redis:list', 1), /unknown command 'BLPOP'/);
  await assert.rejects(client.publish('channel', 'x'), /unknown command 'PUBLISH'/);
  const listener = await connect(open);
  await assert.rejects(listener.subscribe('channel', () => {}), /unknown command 'subscribe'/i);
  await listener.disconnect();
  assert.equal(await client.ping(), 'PONG');
}

// Calls a function with what runs others on a connection of their own, one of at most four.
async function withPool(client, use) {
  if (four) return use((run) => client.executeIsolated(run));
  const pool = redis.createClientPool(open, { maximum: 4 });
  pool.on('error', (error) => console.error(error));
  await pool.connect();
  await use((run) => pool.execute(run));
  pool.destroy();
}

(async () => {
  await connections();
  for (const own of four ? [{ isolationPoolOptions: { max: 4 } }] : [{}, { RESP: 2 }, { RESP: 3 }]) {
    const client = await connect({ ...open, ...own });
    await strings(client);
    await hashes(client);
    await withPool(client, async (isolate) => {
      await transactions(client, isolate);
      await pools(client, isolate);
    });
    await refusals(client);
    await client.quit();
  }
  console.log('node-redis', version);
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
