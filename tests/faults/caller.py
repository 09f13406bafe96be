"""A caller that is about to die: `python caller.py HOW DIRECTORY`. Says "ready" once its actors are at work."""

import functools
import os
import sys

import actor_learner as al
from tests.faults.failing_envs import MixedEnv, QuietEnv

how, directory = sys.argv[1:]
env = functools.partial(MixedEnv, directory)

if how == "collect":
    pool = al.ActorPool(env, num_actors=4, envs_per_actor=1, unroll_length=4)
    print("ready", flush=True)
    pool.collect(timeout=600)

elif how == "interrupt":
    with al.ActorPool(env, num_actors=4, envs_per_actor=1, unroll_length=4) as pool:
        print("ready", flush=True)
        pool.collect(timeout=600)

elif how == "start":
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    print("ready", flush=True)
    al.ActorPool(env, num_actors=4, envs_per_actor=1, unroll_length=4)

elif how == "fork":
    pool = al.ActorPool(env, num_actors=4, envs_per_actor=1, unroll_length=4)
    if os.fork() == 0:
        import time

        time.sleep(8)
        os._exit(0)
    print("ready", flush=True)
    pool.collect(timeout=600)

elif how == "forget":
    pool = al.ActorPool(functools.partial(QuietEnv, 0.01), num_actors=2, envs_per_actor=1, max_policy_lag=1)
    pool.collect()
    print("ready", flush=True)
    raise ZeroDivisionError("the caller has forgotten its pool")

elif how == "pause":
    env = functools.partial(QuietEnv, 0.1)
    with al.ActorPool(env, num_actors=2, envs_per_actor=1, unroll_length=5, actor_timeout=1.0) as pool:
        print("ready", flush=True)
        pool.collect(timeout=1.0)
        print("collected, replaced:", pool.restart_count, flush=True)
