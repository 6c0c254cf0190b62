"""Draw the dashboards without Grafana: the same JSON, the same queries, in a headless Chromium."""
