"""Settings: presets, YAML files, flags, and what is said about wrong ones."""

import dataclasses
from pathlib import Path

import pytest

from spectail.cli.train import default_output, parse
from spectail.methods.registry import METHODS
from spectail.training.build import make_preset
from spectail.training.config import PRESETS, TrainConfig, check_config
from spectail.training.config_io import differences, from_dict, preset, read_yaml, to_dict, write_yaml


def flags(*arguments):
    return parse([str(argument) for argument in arguments])[0]


def written(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_yaml(name, tmp_path):
    config = preset(name)
    write_yaml(tmp_path / "config.yaml", config)
    assert read_yaml(tmp_path / "config.yaml") == config


@pytest.mark.parametrize("name", METHODS)
def test_methods_survive_yaml(name, tmp_path):
    config = from_dict({
        "method": name, "output": str(tmp_path / "ü"), "stage1": "a/b", "car": {"alpha": 3, "stages": ["one", "two"]},
        "data": {"counts": [3, 2, 1], "root": "~/data"}, "optim": {"milestones": [0.5]}, "trackers": ["tensorboard"],
        "model": {"init": "w.pth"},
    })  # fmt: skip
    write_yaml(tmp_path / "config.yaml", config)
    again = read_yaml(tmp_path / "config.yaml")
    assert again == config
    assert differences(again, config) == []
    assert type(again.options) is type(METHODS[name].load().options)
    assert again.data.counts == (3, 2, 1)
    assert isinstance(again.stage1, Path)


def test_options_survive_yaml(tmp_path):
    config = from_dict({"method": "balanced-softmax", "options": {"tau": 2}})
    write_yaml(tmp_path / "c.yaml", config)
    assert read_yaml(tmp_path / "c.yaml").options.tau == 2.0


def test_the_file_is_complete(tmp_path):
    """Every setting is written, so a change of a default does not change an old run."""
    import yaml

    write_yaml(tmp_path / "c.yaml", TrainConfig())
    content = yaml.safe_load((tmp_path / "c.yaml").read_text())
    assert content.keys() == {field.name for field in dataclasses.fields(TrainConfig)}
    assert content["optim"]["momentum"] == 0.9
    assert content == to_dict(TrainConfig())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"optm": {}}, ["'optm'", "did you mean 'optim'"]),
        ({"optim": {"weight_deacy": 1}}, ["'optim.weight_deacy'", "did you mean 'weight_decay'"]),
        ({"data": {"imbalence": 10}}, ["'data.imbalence'", "'imbalance'"]),
        ({"car": {"alfa": 1}}, ["'car.alfa'", "'alpha'"]),
        ({"method": "balanced-softmax", "options": {"tua": 1}}, ["'options.tua'", "'tau'"]),
        ({"options": {"tau": 1}}, ["'options.tau'"]),
        ({"optim": {"epochs": "many"}}, ["'optim.epochs'", "whole number", "'many'"]),
        ({"optim": {"epochs": 2.5}}, ["'optim.epochs'", "whole number", "2.5"]),
        ({"optim": {"epochs": True}}, ["'optim.epochs'", "whole number"]),
        ({"optim": {"lr": "fast"}}, ["'optim.lr'", "a number", "'fast'"]),
        ({"optim": {"lr": True}}, ["'optim.lr'", "a number"]),
        ({"optim": {"lr": None}}, ["'optim.lr'", "a number"]),
        ({"optim": {"optimizer": "adam"}}, ["'optim.optimizer'", "must be one of adamw, sgd; got 'adam'"]),
        ({"optim": {"milestones": [0.5, "x"]}}, ["'optim.milestones'", "a number"]),
        ({"optim": 3}, ["'optim'", "settings by name"]),
        ({"probe": "yes"}, ["'probe'", "true or false"]),
        ({"output": 3}, ["'output'", "a path"]),
        ({"car": {"preset": "papr"}}, ["'car.preset'", "paper, classwise", "'papr'"]),
        ({"method": "carr"}, ["'carr'", "did you mean 'car'"]),
        ({"method": 5}, ["5"]),
        ({"method": ["ce"]}, ["ce"]),
        ({3: 4}, ["3"]),
    ],
)
def test_wrong_settings_are_named(content, words, tmp_path):
    import yaml

    with pytest.raises(ValueError) as error:  # noqa: PT011 - the words are looked at below
        from_dict(content)
    assert all(word in str(error.value) for word in words), str(error.value)
    path = written(tmp_path / "c.yaml", yaml.safe_dump(content))
    with pytest.raises(ValueError, match="c.yaml"):
        read_yaml(path)


def test_numbers_as_people_write_them(tmp_path):
    path = written(tmp_path / "c.yaml", "optim: {lr: 1e-3, weight_decay: 1}\ncar: {alpha: null}\nstage1: null\n")
    config = read_yaml(path)
    assert config.optim.lr == 1e-3
    assert isinstance(config.optim.weight_decay, float)
    assert config.car.alpha is None


def test_files_that_are_no_settings(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(ValueError, match="not valid YAML"):
        read_yaml(written(tmp_path / "a.yaml", "a: [1"))
    with pytest.raises(ValueError, match="settings by name; got list"):
        read_yaml(written(tmp_path / "b.yaml", "- 1\n"))
    assert read_yaml(written(tmp_path / "empty.yaml", "")) == TrainConfig()


def test_differences_name_every_setting():
    a = from_dict({"optim": {"lr": 0.1}, "seed": 1})
    b = from_dict({"method": "balanced-softmax", "options": {"tau": 2}, "seed": 1})
    assert differences(a, b) == ["method: 'ce' -> 'balanced-softmax'", "optim.lr: 0.1 -> 0.001",
                                 "options.tau: None -> 2.0"]  # fmt: skip
    assert differences(a, a) == []


def test_unknown_preset():
    with pytest.raises(ValueError, match="unknown preset 'dmo'; did you mean 'demo'"):
        preset("dmo")


def test_flags_over_yaml_over_preset(tmp_path):
    path = written(tmp_path / "c.yaml", "optim: {lr: 0.5, epochs: 7}\nseed: 3\n")
    config = flags("--preset", "demo", "--config", path, "--epochs", 9)
    assert (config.optim.epochs, config.optim.lr, config.optim.warmup_epochs) == (9, 0.5, 2.0)
    assert (config.seed, config.model.model) == (3, "small-cnn")
    assert flags(f"--config={path}").optim.lr == 0.5
    assert flags("--epochs", 9, "--preset=demo").optim.epochs == 9


def test_no_flags_are_the_defaults():
    config = flags()
    assert dataclasses.replace(config, output=TrainConfig.output) == TrainConfig()
    assert config.output == default_output(config) == Path("runs/glyphs-lt-small-cnn-ce-seed0")


def test_every_setting_has_a_flag():
    config = flags(
        "--dataset", "cifar100-lt", "--root", "/x", "--imbalance", 50, "--val-fraction", 0.1, "--model", "resnet32",
        "--init", "w.pth", "--method", "balanced-softmax", "--stage1", "r", "--tau", 2, "--car.alpha", 3,
        "--car.preset", "classwise", "--car.start-epoch", 2, "--epochs", 5, "--batch-size", 64, "--lr", 0.1,
        "--seed", 4, "--device", "cpu", "--output", "o", "--milestones", 0.5, 0.7, "--trackers", "tensorboard",
        "--counts", 3, 2, "--probe", "--no-eval-train", "--car.stages", "a", "b", "--img-size", 40,
    )  # fmt: skip
    assert config.data.dataset == "cifar100-lt"
    assert (config.data.root, config.data.imbalance, config.data.val_fraction) == (Path("/x"), 50, 0.1)
    assert (config.data.counts, config.model.model, config.model.init) == ((3, 2), "resnet32", Path("w.pth"))
    assert (config.method, config.stage1, config.options.tau) == ("balanced-softmax", Path("r"), 2)
    assert (config.car.enabled, config.car.alpha, config.car.preset) == (True, 3, "classwise")
    assert (config.car.start_epoch, config.car.stages) == (2, ("a", "b"))
    assert (config.optim.epochs, config.optim.batch_size, config.optim.lr) == (5, 64, 0.1)
    assert (config.seed, config.device, config.output) == (4, "cpu", Path("o"))
    assert (config.optim.milestones, config.trackers) == ((0.5, 0.7), ("tensorboard",))
    assert (config.probe, config.eval_train, config.model.img_size) == (True, False, 40)


def test_car_flags():
    assert not flags().car.enabled
    assert flags("--car").car.enabled
    assert flags("--car").car.alpha is None
    assert flags("--car.alpha", 3).car == dataclasses.replace(flags("--car").car, alpha=3.0)
    assert flags("--car.alpha=3").car.enabled
    assert flags("--car.preset", "classwise").car.enabled
    assert flags("--epochs", 3, "--car", "--lr", 0.1).car.enabled
    assert flags("--method", "ce", "--car").method == "ce"


def test_car_stays_from_a_file(tmp_path):
    path = written(tmp_path / "c.yaml", "car: {enabled: true, alpha: 2}\n")
    assert flags("--config", path, "--car.r0", 0.4).car.alpha == 2
    assert flags("--config", path).car.enabled


def test_method_options():
    assert flags("--method", "balanced-softmax").options.tau == 1
    assert flags("--tau", 2, "--method", "car-balanced").options.tau == 2
    for spelling in (["--tau", 2], ["--tau=2"]):
        with pytest.raises(ValueError, match=r"ce has no option --tau; it belongs to balanced-softmax, .*tau-norm.*\."):
            flags("--method", "ce", *spelling)
    with pytest.raises(ValueError, match="ldam-drw has no option --no-psd; it belongs to metasaug"):
        flags("--method", "ldam-drw", "--no-psd")
    with pytest.raises(ValueError, match="cb has no option --weight_average; it belongs to ce, focal"):
        flags("--method", "cb", "--weight_average", "samples")


def test_options_from_a_file_and_flags(tmp_path):
    path = written(tmp_path / "c.yaml", "method: balanced-softmax\noptions: {tau: 3}\n")
    assert flags("--config", path).options.tau == 3
    assert flags("--config", path, "--tau", 4).options.tau == 4
    other = flags("--config", path, "--method", "ce")
    assert other.method == "ce"
    assert not hasattr(other.options, "tau")


def test_wrong_flags():
    with pytest.raises(ValueError, match="unknown method 'balanced-sofmax'; did you mean 'balanced-softmax'"):
        flags("--method", "balanced-sofmax")
    with pytest.raises(ValueError, match="unknown method ''"):
        flags("--method=", "--epochs", 3)
    for wrong in (
        ["--epochs", "x"],
        ["--epoch", "3"],
        ["--optimizer", "adam"],
        ["--seed", 3, "a", "b"],
        ["--epochs", 3, "--method"],
    ):
        with pytest.raises(SystemExit) as error:
            flags(*wrong)
        assert error.value.code == 2


def test_settings_of_earlier_versions_are_read(tmp_path):
    for value in ("true", "false"):
        text = f"data:\n  dataset: folder:photos\n  skip_broken: {value}\n"
        config = read_yaml(written(tmp_path / "old.yaml", text))
        assert (config.data.dataset, config.data.strict) == ("folder:photos", False)
    with pytest.raises(ValueError, match=r"unknown setting 'data\.skip_brokn'"):
        read_yaml(written(tmp_path / "typo.yaml", "data:\n  skip_brokn: true\n"))


def test_an_output_that_is_asked_for_is_used():
    assert flags("--output", "runs/run").output == Path("runs/run")
    assert flags("--output", "x").output == Path("x")


def test_default_output_tells_runs_apart():
    names = {
        str(flags(*arguments).output)
        for arguments in (
            [], ["--seed", 1], ["--car"], ["--method", "car"], ["--car.preset", "classwise"], ["--model", "resnet20"],
            ["--method", "balanced-softmax"], ["--method", "car-balanced"], ["--dataset", "folder:/a/b"],
        )
    }  # fmt: skip
    assert len(names) == 9
    assert all(name.startswith("runs/") and name.count("/") == 1 for name in names)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--momentum", 1], r"--momentum must lie in \[0, 1\); got 1.0"),
        (["--momentum", -0.1], r"--momentum must lie in \[0, 1\); got -0.1"),
        (["--momentum", "nan"], r"--momentum must lie in .* got nan"),
        (["--milestones", 160, 180], "--milestones 160 180 must be shares of the run between 0 and 1; .* write 0.8"),
        (["--milestones", 0.5, 1], "--milestones 0.5 1 must be shares"),
        (["--milestones", 0], "--milestones 0 must be shares"),
        (["--decay-factor", 0], "--decay-factor must be more than 0 and at most 1; got 0.0"),
        (["--decay-factor", 1.5], "--decay-factor must be more than 0 and at most 1; got 1.5"),
        (["--warmup-start", 1.5], "--warmup-start must lie between 0 and 1; got 1.5"),
        (["--warmup-epochs", "inf"], "--warmup-epochs must be at least 0 and finite; got inf"),
        (["--weight-decay", "inf"], "--weight-decay must be at least 0 and finite; got inf"),
        (["--clip", "inf"], "--clip must be at least 0 and finite; got inf"),
        (["--min-lr", "inf"], "--min-lr must be at least 0 and finite; got inf"),
        (["--lr", "inf"], "--lr must be more than 0 and finite; got inf"),
        (["--nesterov"], "--nesterov belongs to --optimizer sgd with a --momentum above 0"),
        (["--nesterov", "--optimizer", "sgd", "--momentum", 0], "--nesterov belongs to --optimizer sgd"),
    ],
)
def test_settings_that_cannot_work_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        check_config(flags(*arguments, "--output", "nowhere"))


def test_settings_at_the_edge_are_accepted():
    check_config(flags("--momentum", 0, "--decay-factor", 1, "--warmup-start", 1, "--milestones", 0.999))
    check_config(flags("--nesterov", "--optimizer", "sgd"))


def test_presets_are_the_protocols_they_name(tmp_path):
    """The paper: ViT-S at 224 pixels, AdamW, batch 128; 200 epochs from scratch (300 on iNaturalist) at 1e-4, 100 of
    fine-tuning at 2e-4. The authors' script: 5e-5, decay 0.05 on all parameters, ImageNet's statistics, five epochs of
    warm-up from a hundredth, a cosine down to 1e-6."""
    for dataset, epochs in (("cifar100-lt", 200), ("inat2018", 300)):
        scratch = preset("scratch", dataset)
        assert (scratch.optim.epochs, scratch.optim.lr, scratch.optim.batch_size) == (epochs, 1e-4, 128)
        assert (scratch.optim.optimizer, scratch.model.pretrained) == ("adamw", False)
        assert scratch.transform == "vit-224-fast"
        assert make_preset(scratch, "cifar").size == 224
    tuned = preset("finetune", "inat2018")
    assert (tuned.optim.epochs, tuned.optim.lr, tuned.model.pretrained) == (100, 2e-4, True)
    assert tuned.transform == "vit-224-fast"
    script = preset("finetune-script")
    optim = script.optim
    assert (optim.lr, optim.weight_decay, optim.decay_all, optim.epochs) == (5e-5, 0.05, True, 100)
    assert (optim.warmup_epochs, optim.warmup_start, optim.min_lr) == (5.0, 0.01, 1e-6)
    found = make_preset(script, "cifar")
    assert found.mean == (0.485, 0.456, 0.406)
    assert "Resize(size=[246], interpolation=InterpolationMode.BILINEAR" in found.describe()


@pytest.mark.parametrize(("given", "kept"), [("auto", "auto"), (0, 0), (3, 3)])
def test_workers_are_a_number_or_auto(given, kept, tmp_path):
    config = from_dict({"workers": given})
    check_config(config)
    write_yaml(tmp_path / "config.yaml", config)
    assert read_yaml(tmp_path / "config.yaml").workers == kept


@pytest.mark.parametrize("given", ["many", 1.5, -1, True])
def test_other_workers_are_refused(given):
    with pytest.raises(ValueError, match="workers"):
        check_config(from_dict({"workers": given}))
