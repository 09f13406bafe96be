# Trains in a container:
#   docker build -t actor-learner . && mkdir -p runs
#   docker run --rm -v "$PWD/runs:/home/trainer/runs" actor-learner train CartPole-v1
#
# Batches lie in anonymous memory (memfd_create): `docker run --memory` limits it, --shm-size doesn't.
# The user in the container is 1000, who must be able to write to the mounted folder.
# With a GPU: docker build --build-arg EXTRA=cuda -t actor-learner . (or jax-cuda), and docker run --gpus all ...
ARG PYTHON=3.13
FROM python:${PYTHON}-slim

ARG EXTRA=plots
# MuJoCo and videos draw by software. No version is pinned: Debian's mirrors keep only the newest one. Box2D is left out
# where it has no wheel (Linux on ARM), as pyproject.toml says: nothing here could compile it.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libegl1 libgl1 libosmesa6 \
    && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml setup.py README.md LICENSE /source/
COPY actor_learner /source/actor_learner
COPY envs /source/envs
RUN pip install --no-cache-dir "/source[run,${EXTRA}]" && rm -rf /source
RUN useradd --uid 1000 --create-home trainer
USER 1000
WORKDIR /home/trainer
ENV MUJOCO_GL=egl
ENTRYPOINT ["actor-learner"]
CMD ["doctor"]
