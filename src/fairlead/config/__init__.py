"""Configuration of servers and agents: one TOML file and environment variables."""
