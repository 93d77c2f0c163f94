"""Estimates what a train step costs on TPUs, without having any."""
