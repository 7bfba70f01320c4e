"""Each test gets servers as if it had its own."""

from __future__ import annotations

import psycopg
import pytest
import redis

from conquiet.embedded import PostgresServer, RedisServer


@pytest.mark.parametrize("turn", [1, 2])
def test_redis_is_empty(redis_url: str, redis_server: RedisServer, turn: int) -> None:
    assert redis_url == redis_server.url
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set("left behind", turn)


@pytest.mark.parametrize("turn", [1, 2])
def test_postgres_is_empty(postgres_dsn: str, postgres_server: PostgresServer, turn: int) -> None:
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("CREATE TABLE left_behind (id int)")
    with psycopg.connect(postgres_server.dsn) as connection:
        names = connection.execute("SELECT datname FROM pg_database WHERE datname LIKE 'test_%'").fetchall()
    assert len(names) == 1
