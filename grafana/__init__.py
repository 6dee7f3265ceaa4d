"""Dashboards, rules and provisioning for Prometheus and Grafana."""
