import gc
import os
import signal
import sys

import keras
import pytest

import actor_learner as al
from actor_learner import cli
from actor_learner.system.keras_import import (
    QuietTensorFlow,
    _deferring,
    _without_collector,
    import_keras,
    keeping_interrupts,
)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that notes when its parts are imported."""
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "slow_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("answer = 1\n")
    (folder / "part.py").write_text("def double(x):\n    return 2 * x\nanswer = 2\n")
    yield ("slow_package", "slow_package.part")
    for name in ("slow_package", "slow_package.part"):
        sys.modules.pop(name, None)


def test_a_module_that_is_put_off_is_imported_when_it_is_used(package):
    with _deferring(package):
        import slow_package.part as part
        from slow_package import part as same
        from slow_package.part import double
    assert "slow_package" not in sys.modules
    assert part is same
    assert part.answer == 2
    assert double(4) == 8
    import slow_package.part as real

    assert real is not part
    assert real.double(4) == part.double(4) == 8


def test_a_package_that_is_not_there_stays_so_and_one_that_is_loaded_too(package):
    import slow_package

    with _deferring(("no_such_package", *package)):
        with pytest.raises(ImportError):
            import no_such_package  # noqa: F401
        assert sys.modules["slow_package"] is slow_package


def test_the_collector_is_on_again_where_it_was():
    with _without_collector():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with _without_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("swallowed", [True, False])
def test_ctrl_c_within_an_import_stays_ctrl_c(swallowed):
    """Native modules turn one into an ImportError, and what loads on demand goes on without a word."""
    with pytest.raises(KeyboardInterrupt), keeping_interrupts():  # noqa: PT012 - in there it becomes something else
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt as interrupt:
            if not swallowed:
                raise ImportError("initialization failed") from interrupt
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_import_that_fails_by_itself_fails_as_it_would():
    with pytest.raises(ImportError, match="no such library"), keeping_interrupts():
        raise ImportError("no such library")


@pytest.mark.parametrize("floatx", ["float64", "bfloat16"])
@pytest.mark.parametrize("start", [import_keras, lambda: al.Learner(keras.Sequential(), None, action_space=None)])
def test_another_floatx_is_refused(start, floatx):
    keras.config.dtype_policy()  # Keras makes it once in a process, of the floatx that holds then
    keras.config.set_floatx(floatx)
    try:
        with pytest.raises(ValueError, match=rf"must be float32, .*Received: floatx='{floatx}'$"):
            start()
    finally:
        keras.config.set_floatx("float32")


def test_at_a_shell_tensorflow_is_imported_quietly_whichever_module_does_it(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    for name in ("show_stacks", "exit_with"):
        monkeypatch.setattr(cli, name, lambda *_: None)
    cli.run()
    assert isinstance(sys.meta_path[0], QuietTensorFlow)
