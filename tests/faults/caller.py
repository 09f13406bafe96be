"""A caller that is about to die: `python caller.py HOW DIRECTORY SECONDS`. Says "ready" once its actors are at work."""

import functools
import os
import sys
import time

import actor_learner as al
from tests.faults.failing_envs import MixedEnv, QuietEnv

how, directory, seconds = sys.argv[1:]
env = functools.partial(MixedEnv, directory)

if how == "start":
    print("ready", flush=True)
    al.ActorPool(env, num_actors=4, envs_per_actor=1, unroll_length=4)

elif how in ("collect", "fork"):
    with al.ActorPool(env, num_actors=4, envs_per_actor=1, unroll_length=4) as pool:
        if how == "fork" and os.fork() == 0:
            time.sleep(3600)
            os._exit(0)
        print("ready", flush=True)
        pool.collect(timeout=3600)

elif how == "pause and forget":
    timeout = float(seconds)
    env = functools.partial(QuietEnv, timeout / 10)
    options = {"num_actors": 2, "envs_per_actor": 1, "unroll_length": 5, "max_policy_lag": 1}
    pool = al.ActorPool(env, actor_timeout=timeout, **options)
    print("ready", flush=True)
    pool.collect(timeout=timeout)
    print("collected, replaced:", pool.restart_count, flush=True)
    raise ZeroDivisionError("the caller has forgotten its pool")
