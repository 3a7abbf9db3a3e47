<?php
// SPDX-License-Identifier: Apache-2.0
// PHP's own sessions with phpredis as their handler: each function below is one request of a browser.
declare(strict_types=1);

$at = getenv('FARPOOL_HOST') . ':' . getenv('FARPOOL_LOCKED_PORT') . '?auth=' . urlencode(getenv('FARPOOL_PASSWORD')) . '&prefix=php:';
ini_set('session.save_handler', 'redis');
ini_set('session.save_path', "tcp://$at");
ini_set('session.gc_maxlifetime', '500');
ini_set('session.use_cookies', '0');
ini_set('session.cache_limiter', '');

function check(mixed $got, mixed $wanted): void
{
    if ($got !== $wanted) {
        throw new Exception('got ' . var_export($got, true) . ', and wanted ' . var_export($wanted, true));
    }
}

function visit(string $id): int
{
    session_id($id);
    session_start();
    $_SESSION['visits'] = ($_SESSION['visits'] ?? 0) + 1;
    session_write_close();
    return $_SESSION['visits'];
}

set_error_handler(fn(int $level, string $text) => throw new ErrorException($text));
ob_start();
$anna = session_create_id();
$ben = session_create_id();
foreach ([1, 2, 3] as $visits) {
    check(visit($anna), $visits);
}
check(visit($ben), 1);
session_id($anna);
session_start();
check(session_regenerate_id(true), true);
$new = session_id();
session_write_close();
check(visit($new), 4);
check(visit($anna), 1);
session_id($ben);
session_start();
check(session_destroy(), true);
check(visit($ben), 1);

$client = new Redis();
$client->connect(getenv('FARPOOL_HOST'), (int) getenv('FARPOOL_LOCKED_PORT'));
$client->auth(getenv('FARPOOL_PASSWORD'));
$ttl = $client->ttl("php:$new");
check($ttl > 490 && $ttl <= 500, true);
ob_end_clean();
echo 'PHP ', PHP_MAJOR_VERSION, '.', PHP_MINOR_VERSION, "\n";
