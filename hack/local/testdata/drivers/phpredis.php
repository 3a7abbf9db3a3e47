<?php
// SPDX-License-Identifier: Apache-2.0
// phpredis against a compute shard. See hack/local/drivers_test.go for what every driver does.
declare(strict_types=1);

$host = getenv('FARPOOL_HOST');
$port = (int) getenv('FARPOOL_PORT');
$locked = (int) getenv('FARPOOL_LOCKED_PORT');
$password = getenv('FARPOOL_PASSWORD');

function check(mixed $got, mixed $wanted): void
{
    if ($got !== $wanted) {
        throw new Exception('got ' . var_export($got, true) . ', and wanted ' . var_export($wanted, true));
    }
}

// Some refusals are exceptions; others are false, with the words in getLastError.
function refused(Redis $client, string $words, callable $do): void
{
    $client->clearLastError();
    try {
        $answer = $do();
        $said = (string) $client->getLastError();
    } catch (RedisException $e) {
        $answer = null;
        $said = $e->getMessage();
    }
    if ($answer || !str_contains($said, $words)) {
        throw new Exception("no error with '$words': the answer was " . var_export($answer, true) . ", the error '$said'");
    }
}

function connect(string $host, int $port): Redis
{
    $client = new Redis();
    $client->connect($host, $port, 10.0);
    return $client;
}

$client = connect($host, $locked);
refused($client, 'NOAUTH', fn() => $client->get('x'));
refused($client, 'WRONGPASS', fn() => $client->auth('wrong'));
check($client->auth($password), true);
check($client->auth(['default', $password]), true);
check($client->client('setname', 'phpredis'), true);
check($client->client('getname'), 'phpredis');
$client = new Redis();
check($client->pconnect(getenv('FARPOOL_SOCKET')), true);
check($client->ping(), true);

$client = connect($host, $port);
check($client->select(0), true);
refused($client, 'DB index is out of range', fn() => $client->select(1));
$value = str_repeat(implode('', array_map('chr', range(0, 255))), 100);
check($client->set('phpredis:binary', $value), true);
check($client->get('phpredis:binary'), $value);
check($client->set('phpredis:nx', '1', ['nx', 'ex' => 100]), true);
check($client->set('phpredis:nx', '2', ['nx']), false);
check($client->ttl('phpredis:nx') > 90, true);
check($client->incrBy('phpredis:nx', 41), 42);
check($client->mset(['phpredis:a' => '1', 'phpredis:b' => '2']), true);
check($client->mget(['phpredis:a', 'phpredis:b', 'phpredis:none']), ['1', '2', false]);
check($client->del('phpredis:a', 'phpredis:b'), 2);

$pipe = $client->multi(Redis::PIPELINE);
for ($i = 0; $i < 300; $i++) {
    $pipe->setex("phpredis:scan:$i", 1000, 'x');
}
check($pipe->exec(), array_fill(0, 300, true));
$client->setOption(Redis::OPT_SCAN, Redis::SCAN_RETRY);
$found = [];
for ($cursor = null; $keys = $client->scan($cursor, 'phpredis:scan:*', 50);) {
    $found += array_flip($keys);
}
check(count($found), 300);

check($client->hMSet('phpredis:hash', ['one' => 1, 'two' => 2]), true);
check($client->hIncrBy('phpredis:hash', 'one', 9), 10);
check($client->hGetAll('phpredis:hash'), ['one' => '10', 'two' => '2']);
$cursor = null;
check($client->hScan('phpredis:hash', $cursor), ['one' => '10', 'two' => '2']);
refused($client, 'WRONGTYPE', fn() => $client->get('phpredis:hash'));

check($client->multi()->set('phpredis:count', '1')->incr('phpredis:count')->expire('phpredis:count', 100)->exec(), [true, 2, true]);
$client->watch('phpredis:count');
connect($host, $port)->incr('phpredis:count');
check($client->multi()->set('phpredis:count', '0')->exec(), false);
refused($client, 'one key', function () use ($client) {
    $client->multi()->set('phpredis:x', '1');
    return $client->set('phpredis:y', '2');
});
$client = connect($host, $port);
check($client->exists('phpredis:x', 'phpredis:y'), 0);

refused($client, "unknown command 'EVAL'", fn() => $client->eval('return 1'));
refused($client, "unknown command 'BLPOP'", fn() => $client->blPop(['phpredis:list'], 1));
refused($client, "unknown command 'PUBLISH'", fn() => $client->publish('channel', 'x'));
check($client->ping(), true);
// The driver swallows the error of a subscription, whichever it is; it does not wait for messages.
check(connect($host, $port)->subscribe(['channel'], fn() => null), null);
echo 'phpredis ', phpversion('redis'), "\n";
