# Trains in a container: docker build -t actor-learner . && docker run --rm --shm-size 2g -v "$PWD/runs:/home/trainer/runs" actor-learner train CartPole-v1
#
# --shm-size: batches lie in /dev/shm, of which Docker gives 64 MB; `actor-learner doctor` says whether it is enough.
# With a GPU: docker build --build-arg EXTRA=cuda -t actor-learner . (or jax-cuda), and docker run --gpus all ...
ARG PYTHON=3.13
FROM python:${PYTHON}-slim

ARG EXTRA=plots
# box2d is compiled where it has no wheel; MuJoCo and videos draw by software.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libegl1 libgl1 libosmesa6 \
    && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml README.md LICENSE /source/
COPY actor_learner /source/actor_learner
COPY envs /source/envs
RUN pip install --no-cache-dir "/source[run,${EXTRA}]" && rm -rf /source
RUN useradd --create-home trainer
USER trainer
WORKDIR /home/trainer
ENV MUJOCO_GL=egl
ENTRYPOINT ["actor-learner"]
CMD ["doctor"]
