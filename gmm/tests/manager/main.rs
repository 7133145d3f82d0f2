//! System tests of the manager, one file per subject: a running `gmm`, its stores, its clients. All files form one
//! program, so that the manager is linked only once.

mod access;
mod access_etcd;
mod backup;
mod cli;
mod cli_fabric;
mod common;
mod crash;
mod etcd_refuses;
mod events;
mod fm_access;
mod fm_manager;
mod generated;
mod http;
mod leader;
mod leader_client;
mod mirror;
mod openapi;
mod rest;
mod schemathesis;
mod server;
mod store;
mod store_etcd;
mod store_suite;
