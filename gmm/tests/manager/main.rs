//! The manager from outside, one file per subject: a running `gmm`, its stores, its clients. One program, so that the manager
//! is linked once for all of them.

mod cli;
mod cli_fabric;
mod common;
mod crash;
mod doors;
mod doors_etcd;
mod events;
mod fm_doors;
mod fm_manager;
mod leader;
mod leader_client;
mod openapi;
mod rest;
mod server;
mod store;
mod store_etcd;
mod store_suite;
