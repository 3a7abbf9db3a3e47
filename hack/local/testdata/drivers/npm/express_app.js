// SPDX-License-Identifier: Apache-2.0
// Sessions of Express, kept in a pool by connect-redis: a view that counts visits, two browsers, an expiry, a new name, a log-out.
'use strict';
const assert = require('node:assert/strict');
const { once } = require('node:events');
const express = require('express');
const session = require('express-session');
const { RedisStore } = require('connect-redis');
const redis = require('redis');

const { FARPOOL_HOST: host, FARPOOL_LOCKED_PORT: locked, FARPOOL_PASSWORD: password } = process.env;

function application(store) {
  const app = express();
  app.use(session({ store, secret: 'test', resave: false, saveUninitialized: false, cookie: { maxAge: 500000 } }));
  app.get('/visit', (request, response) => {
    request.session.visits = (request.session.visits ?? 0) + 1;
    response.send(String(request.session.visits));
  });
  app.get('/rotate', (request, response, next) => {
    const { visits } = request.session;
    request.session.regenerate((error) => {
      if (error) return next(error);
      request.session.visits = visits;
      response.send(request.session.id);
    });
  });
  app.get('/logout', (request, response, next) => request.session.destroy((error) => (error ? next(error) : response.send('bye'))));
  return app;
}

// Returns a function that asks for a page with the cookie of its last answer.
function browser(port) {
  let cookie = '';
  return async (page) => {
    const response = await fetch(`http://127.0.0.1:${port}/${page}`, { headers: { cookie } });
    const text = await response.text();
    assert.equal(response.status, 200, text);
    cookie = response.headers.get('set-cookie')?.split(';')[0] ?? cookie;
    return text;
  };
}

async function sessions(client, store, port) {
  const anna = browser(port);
  const ben = browser(port);
  for (const visits of ['1', '2', '3']) assert.equal(await anna('visit'), visits);
  assert.equal(await ben('visit'), '1');
  const keys = await client.keys('express:*');
  assert.equal(keys.length, 2);
  for (const key of keys) assert((await client.ttl(key)) > 490);
  const renamed = await anna('rotate');
  assert.deepEqual((await client.keys('express:*')).filter((key) => !keys.includes(key)), [`express:${renamed}`]);
  assert.equal(await ben('logout'), 'bye');
  assert.equal(await ben('visit'), '1');
  assert.equal(await anna('visit'), '4');
  // What the store itself offers.
  const ask = (method) => new Promise((resolve, reject) => store[method]((error, answer) => (error ? reject(error) : resolve(answer))));
  assert.equal(await ask('length'), 2);
  assert((await ask('ids')).includes(renamed));
  assert.deepEqual((await ask('all')).map((each) => each.visits).sort(), [1, 4]);
  await ask('clear');
  assert.equal(await ask('length'), 0);
  assert.equal(await anna('visit'), '1');
}

(async () => {
  const client = redis.createClient({ url: `redis://default:${encodeURIComponent(password)}@${host}:${locked}` });
  client.on('error', (error) => console.error(error));
  await client.connect();
  const store = new RedisStore({ client, prefix: 'express:' });
  const server = application(store).listen(0, '127.0.0.1');
  await once(server, 'listening');
  await sessions(client, store, server.address().port);
  server.closeAllConnections();
  server.close();
  await client.quit();
  for (const name of ['express', 'express-session', 'connect-redis']) console.log(name, require(`${process.env.NODE_PATH}/${name}/package.json`).version);
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
