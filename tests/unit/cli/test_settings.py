"""Settings of the command line: which place wins, and the error when no place has a value."""

from __future__ import annotations

from pathlib import Path

import pytest

from conquiet.cli.exits import advice, without_secrets
from conquiet.cli.output import printable
from conquiet.cli.settings import CONCURRENCY, DSN, GROUP, METRICS_PORT, REDIS_URL, Found, Setting, Settings
from conquiet.errors import SettingsError

EVERYWHERE = {"CONQUIET_DSN": "sqlite:///ours.db", "DATABASE_URL": "sqlite:///general.db"}


def settings(folder: Path, text: str | None = 'dsn = "sqlite:///written.db"', **environment: str) -> Settings:
    if text is not None:
        (folder / "settings.toml").write_text(text)
    return Settings(environment, str(folder / "settings.toml") if text is not None else None)


def test_the_first_place_that_has_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert settings(tmp_path, **EVERYWHERE).find(DSN, "sqlite:///flag.db") == ("sqlite:///flag.db", "--dsn")
    assert settings(tmp_path, **EVERYWHERE).find(DSN) == ("sqlite:///ours.db", "CONQUIET_DSN")
    general = settings(tmp_path, DATABASE_URL="sqlite:///general.db")
    assert general.find(DSN) == ("sqlite:///general.db", "DATABASE_URL")
    written = settings(tmp_path).find(DSN)
    assert written == ("sqlite:///written.db", f"dsn in {tmp_path / 'settings.toml'}")
    assert Settings({}).find(DSN) is None
    (tmp_path / "conquiet.toml").write_text('dsn = "sqlite:///here.db"')
    assert Settings({}).find(DSN) == ("sqlite:///here.db", "dsn in conquiet.toml")


def test_redis_has_variables_of_its_own(tmp_path: Path) -> None:
    both = {"CONQUIET_REDIS_URL": "redis://ours", "REDIS_URL": "redis://general"}
    assert settings(tmp_path, None, **both).find(REDIS_URL) == ("redis://ours", "CONQUIET_REDIS_URL")
    del both["CONQUIET_REDIS_URL"]
    assert settings(tmp_path, None, **both).find(REDIS_URL) == ("redis://general", "REDIS_URL")


def test_a_variable_that_is_set_to_nothing_is_not_set(tmp_path: Path) -> None:
    found = settings(tmp_path, CONQUIET_DSN="", DATABASE_URL="sqlite:///general.db").find(DSN)
    assert found is not None
    assert found.origin == "DATABASE_URL"


def test_the_file_may_be_named_by_a_variable(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text('group = "billing"')
    named = Settings({"CONQUIET_CONFIG": str(tmp_path / "other.toml")})
    assert named.need(GROUP) == "billing"
    with pytest.raises(SettingsError, match="no file .*nowhere.toml, which CONQUIET_CONFIG names"):
        Settings({"CONQUIET_CONFIG": "nowhere.toml"}).find(GROUP)
    with pytest.raises(SettingsError, match="which --config names"):
        Settings({}, "nowhere.toml").find(GROUP)


@pytest.mark.parametrize("setting", [DSN, REDIS_URL, GROUP, CONCURRENCY], ids=lambda setting: setting.key)
def test_what_is_missing_is_named_with_its_flag_and_its_variables(setting: Setting, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        settings(tmp_path, "").need(setting)
    for part in (setting.flag, *setting.variables, f"{setting.key} = ", "settings.toml"):
        assert part in str(refused.value)


def test_numbers_are_numbers_wherever_they_come_from(tmp_path: Path) -> None:
    assert settings(tmp_path, "concurrency = 4").need(CONCURRENCY) == 4
    assert settings(tmp_path, "concurrency = 4", CONQUIET_CONCURRENCY="7").need(CONCURRENCY) == 7
    with pytest.raises(SettingsError, match="CONQUIET_METRICS_PORT must be a whole number, not 'many'"):
        settings(tmp_path, None, CONQUIET_METRICS_PORT="many").find(METRICS_PORT)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("dns = 1", "an unknown key 'dns': it may have dsn, redis_url"),
        ("dsn = 5", 'dsn is written as dsn = "sqlite:///jobs.db"'),
        ('dsn = ""', "dsn is written as"),
        ("concurrency = true", "concurrency = 8"),
        ("dsn = ", "is not TOML"),
    ],
)
def test_a_file_with_a_mistake_is_refused_whatever_is_asked_for(
    text: str, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=complaint):
        settings(tmp_path, text).find(GROUP)


def test_an_empty_flag_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--dsn is empty"):
        settings(tmp_path, **EVERYWHERE).find(DSN, "")


def test_no_piece_of_a_password_is_shown() -> None:
    used = {"dsn": Found("postgresql://app:hunter ss@wordy@host/shop", "--dsn")}
    text = (
        'spaces found in "hunter ss@wordy", near "ss@wordy" after hunter; use postgresql://user:password@host'
    )
    assert without_secrets(text, used) == (
        'spaces found in "***", near "***" after ***; use postgresql://user:password@host'
    )


def test_errors_nobody_expected_say_so() -> None:
    assert advice(KeyError("x"), {}) == "KeyError: 'x' (unexpected: run it again with --debug)"


def test_control_characters_are_shown_not_sent() -> None:
    assert printable("a\x1b[31m\tb\nc\u202e") == "a\\x1b[31m\\tb\nc\\u202e"
