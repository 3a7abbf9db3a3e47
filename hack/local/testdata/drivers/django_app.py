# SPDX-License-Identifier: Apache-2.0
# Django's cache and its sessions, kept in a pool by django-redis, and from Django 4.0 by Django's own backend, too: settings as their manuals give them, and views
# that know nothing of it.
import os
import urllib.parse

import django
from django.conf import settings
from django.http import HttpResponse
from django.urls import path

location = f"redis://default:{urllib.parse.quote(os.environ['FARPOOL_PASSWORD'], safe='')}@{os.environ['FARPOOL_HOST']}:{os.environ['FARPOOL_LOCKED_PORT']}/0"
caches = {
    name: {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": location,
        "KEY_PREFIX": f"django-{name}",
        "OPTIONS": {"CLIENT_CLASS": "django_redis.client.DefaultClient"},
    }
    for name in ("default", "sessions")
}
if django.VERSION >= (4, 0):
    caches["own"] = {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": location, "KEY_PREFIX": "django-own"}

settings.configure(
    SECRET_KEY="test",
    ALLOWED_HOSTS=["testserver"],
    ROOT_URLCONF=__name__,
    MIDDLEWARE=["django.middleware.cache.UpdateCacheMiddleware", "django.contrib.sessions.middleware.SessionMiddleware"],
    SESSION_ENGINE="django.contrib.sessions.backends.cache",
    SESSION_CACHE_ALIAS="sessions",
    CACHES=caches,
)
django.setup()

import django_redis  # noqa: E402
from django.core.cache import cache  # noqa: E402
from django.test import Client, override_settings  # noqa: E402
from django.views.decorators.cache import cache_page  # noqa: E402
from redis.exceptions import ResponseError  # noqa: E402

rendered = 0


def visit(request):
    request.session["visits"] = request.session.get("visits", 0) + 1
    return HttpResponse(str(request.session["visits"]))


def log_out(request):
    request.session.flush()
    return HttpResponse("bye")


def rotate(request):
    request.session.cycle_key()
    return HttpResponse(request.session.session_key)


@cache_page(60)
def page(request):
    global rendered
    rendered += 1
    return HttpResponse(f"page {rendered}")


urlpatterns = [path("visit", visit), path("logout", log_out), path("rotate", rotate), path("page", page)]


def refused(words, do):
    try:
        answer = do()
    except ResponseError as e:
        assert words in str(e), f"{e!r} does not say {words!r}"
        return
    raise AssertionError(f"no error with {words!r}: the answer was {answer!r}")


def sessions():
    anna, ben = Client(), Client()
    for visits in (1, 2, 3):
        assert anna.get("/visit").content == str(visits).encode()
    assert ben.get("/visit").content == b"1"
    before = anna.cookies["sessionid"].value
    assert anna.get("/rotate").content.decode() != before and anna.get("/visit").content == b"4"
    ben.get("/logout")
    assert ben.get("/visit").content == b"1" and anna.get("/visit").content == b"5"


def pages():
    assert Client().get("/page").content == Client().get("/page").content == b"page 1" and rendered == 1


# What all backends have.
def common(cache):
    cache.set("object", {"list": [1, 2.5, None], "text": "\u00e4\u4e16"}, 60)
    assert cache.get("object") == {"list": [1, 2.5, None], "text": "\u00e4\u4e16"}
    assert cache.add("once", 1) and not cache.add("once", 2) and cache.get("once") == 1
    assert cache.touch("once", 1000) and cache.touch("none") is False
    assert cache.get_or_set("made", lambda: "new", 60) == "new" and cache.get("made") == "new"
    cache.set("forever", 1, None)
    assert "forever" in cache
    cache.set("gone", 1, 0)
    assert cache.get("gone", "default") == "default"
    assert cache.get_many(["object", "once", "none"]).keys() == {"object", "once"}
    refused("not queued: ", lambda: cache.set_many({"a": 1, "b": 2}, 60))
    assert cache.get_many(["a", "b"]) == {}
    cache.set("counter", 1, 60)
    assert cache.incr("counter") == 2 and cache.get("counter") == 2 and cache.decr("counter", 2) == 0


def of_django_redis(cache):
    assert 50 < cache.ttl("object") <= 60 and 990 < cache.ttl("once") <= 1000 and cache.ttl("forever") is None
    # The driver sends a script; where that is refused, it reads the number and writes it back.
    assert 50 < cache.ttl("counter") <= 60
    assert set(cache.keys("*")) >= {"object", "once", "made", "forever"}
    assert cache.delete("once") and not cache.delete("once") and cache.delete_many(["object", "made"]) == 2


common(cache)
of_django_redis(cache)
sessions()
pages()
if "own" in caches:
    common(django.core.cache.caches["own"])
    with override_settings(SESSION_CACHE_ALIAS="own"):
        sessions()
print("django-redis", ".".join(map(str, django_redis.VERSION)))
print("Django", django.get_version())
