# SPDX-License-Identifier: Apache-2.0
# Flask-Session's store in a pool: a view that counts visits, two browsers, an expiry, a log-out.
import os

import flask
import flask_session
import redis

client = redis.Redis(os.environ["FARPOOL_HOST"], int(os.environ["FARPOOL_PORT"]))
app = flask.Flask(__name__)
app.config.update(SESSION_TYPE="redis", SESSION_REDIS=client, SESSION_KEY_PREFIX="flask:", PERMANENT_SESSION_LIFETIME=500)
flask_session.Session(app)


@app.route("/visit")
def visit():
    flask.session["visits"] = flask.session.get("visits", 0) + 1
    return str(flask.session["visits"])


@app.route("/logout")
def log_out():
    flask.session.clear()
    return "bye"


anna, ben = app.test_client(), app.test_client()
for visits in (1, 2, 3):
    assert anna.get("/visit").text == str(visits)
assert ben.get("/visit").text == "1"
keys = list(client.scan_iter("flask:*"))
assert len(keys) == 2 and all(490 < client.ttl(key) <= 500 for key in keys), keys
ben.get("/logout")
assert ben.get("/visit").text == "1" and anna.get("/visit").text == "4"
client.delete(*keys)
assert anna.get("/visit").text == "1"
print("Flask-Session", flask_session.__version__)
