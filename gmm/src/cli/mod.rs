//! The command line, in the manner of the CXL tools: a module for each subcommand or group of them, and exit
//! codes.

mod backup;
mod balance;
mod bindings;
mod clone_region;
mod contact;
mod doctor;
mod fabric_file;
mod fm;
mod initialisation_mode;
mod label_region;
mod lifecycle;
mod lineage;
mod list;
mod monitor;
mod move_region;
mod names;
mod nodes;
mod progress;
mod protection;
mod refused;
mod region_wait;
mod regions;
mod relocate;
mod seal_region;
mod serve;
mod since;
mod status;
mod token;
mod waiting_region;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use cxloe_daemon::Span;
use cxloe_daemon::command_line::{Failure, ManArgs, completion, finish, output};

const AFTER_HELP: &str = "\
Examples:
  gmm serve --store /var/lib/cxloe/gmm.redb          run the manager on this machine
  gmm list -M -u                                     memory nodes, sizes for people
  gmm create-region -s 1G --owner cn0 scratch        1 GiB for the compute node cn0
  gmm create-region -w 4 -g 1024 -s 64G --owner cn1  interleaved over four memory nodes
  gmm grow-region scratch -s +1G                     while it is used
  gmm list -R                                        regions; with --json as JSON
  gmm destroy-region scratch                         give the memory back, zeroed
  gmm monitor                                        follow what happens
  gmm token create --role mn                         for a memory node that is to join
  gmm doctor                                         check this machine

Exit codes:
  0  done                        3  manager unreachable
  1  failed                      4  no such region or node
  2  wrong arguments             5  refused: no space, quota, in use, wrong state, static fabric

Environment:
  CXLOE_MANAGER   URL of the manager, or URLs, as --manager
  CXLOE_TOKEN     a token, instead of the one stored by `gmm login`
  CXLOE_LOG       log filter, as in `info`, `debug`, `cxloe_gmm=trace`";

/// The global memory manager of CXL over Ethernet
#[derive(Debug, Parser)]
#[command(name = "gmm", version, after_help = AFTER_HELP, max_term_width = 110)]
pub struct Args {
    /// The manager to ask: https://HOST:PORT or unix:/path/to/socket; several, separated by commas [default: that of the
    /// last `gmm login`; else this machine's socket, or https://127.0.0.1:7440]
    #[arg(long, global = true, env = "CXLOE_MANAGER", value_name = "URL")]
    manager: Option<String>,

    /// Time to wait for a leader where several managers elect one; 0s: do not wait
    #[arg(long, global = true, default_value = "15s", value_name = "TIME")]
    wait_manager: Span,

    #[command(flatten)]
    form: output::FormArgs,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the manager
    Serve(Box<serve::ServeArgs>),
    /// Check this machine: is it ready for a manager, and what is to be changed?
    Doctor(Box<doctor::DoctorArgs>),
    /// List memory nodes, compute nodes, regions, decoders, bindings, sessions, events
    List(Box<list::ListArgs>),
    /// Create a region for a compute node
    CreateRegion(regions::CreateArgs),
    /// Make a region larger while it is used
    GrowRegion(regions::GrowArgs),
    /// Change the number of copies of a region while it is used
    Protect(protection::ProtectArgs),
    /// Destroy regions: unmap them, zero their memory, give it back
    DestroyRegion(lifecycle::DestroyArgs),
    /// Disable regions: their owners release them, the content is kept
    DisableRegion(lifecycle::DisableArgs),
    /// Enable disabled regions: their owners attach them again
    EnableRegion(lifecycle::EnableArgs),
    /// Reset lost regions: the lost parts are mapped again and read as zeros
    ResetRegion(lifecycle::ResetArgs),
    /// Reserve capacity of a memory node for logical devices
    SetLd(bindings::SetLdArgs),
    /// Bind a logical device to a compute node
    Bind(bindings::BindArgs),
    /// Unbind a logical device from its compute node
    Unbind(bindings::UnbindArgs),
    /// Limit the regions of a compute node
    SetQuota(nodes::QuotaArgs),
    /// Suspend a compute node: it releases its regions and attaches none
    Hold(nodes::HoldArgs),
    /// Resume a suspended compute node
    Release(nodes::ReleaseArgs),
    /// Create, list and revoke tokens, by which people and nodes authenticate
    Token(token::TokenArgs),
    /// Store a token for a manager, for all commands
    Login(token::LoginArgs),
    /// Remove the token stored by `gmm login`
    Logout(token::LogoutArgs),
    /// Show your identity and your rights at the manager
    #[command(after_help = "Example:\n  gmm whoami")]
    Whoami,
    /// Revoke a node's access until it joins again
    Revoke(token::RevokeArgs),
    /// Remove the record of a node that will not return
    Forget(nodes::ForgetArgs),
    /// Move all parts of regions from a memory node to others
    Drain(protection::DrainArgs),
    /// Give a region to another compute node with its content
    MoveRegion(move_region::MoveRegionArgs),
    /// Change the labels of a region, by which it can be found
    LabelRegion(label_region::LabelRegionArgs),
    /// Make a region read-only for good
    SealRegion(seal_region::SealRegionArgs),
    /// Let a further compute node read a sealed region
    ShareRegion(seal_region::ShareRegionArgs),
    /// Make a region that begins with the content of another one
    CloneRegion(clone_region::CloneRegionArgs),
    /// Keep the content that a region has now, in a region that nobody can write
    Snapshot(clone_region::SnapshotArgs),
    /// Move a part of a region from one memory node to another while it is used
    Relocate(relocate::RelocateArgs),
    /// Even out the use of the memory nodes by moving parts of regions
    Rebalance(relocate::RebalanceArgs),
    /// Make nodes accept an older store, and show what that loses
    AdoptFabric(lineage::AdoptArgs),
    /// Write a backup of the store and of the authority to two files
    Backup(backup::BackupArgs),
    /// Replace the store and the authority by a backup
    Restore(backup::RestoreArgs),
    /// Zero and free the memory of a memory node that belongs to no region
    ReleaseOrphans(lineage::ReleaseOrphansArgs),
    /// Send requests to the FM API of a CXL switch, this manager's or another's
    Fm(Box<fm::FmArgs>),
    /// Follow events, one JSON object per line
    Monitor(monitor::MonitorArgs),
    /// Show the health of the manager
    Status(status::StatusArgs),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  gmm completions bash > /etc/bash_completion.d/gmm")]
    Completions {
        /// Shell that the script is for
        shell: clap_complete::Shell,
    },
    /// Write the manual pages of all commands
    #[command(after_help = "Example:\n  gmm man --dir /usr/local/share/man/man1")]
    Man(ManArgs),
}

/// Runs the subcommand that the arguments name, or answers a shell that asks for completions.
pub fn run() -> ExitCode {
    if let Some(words) = completion::asked() {
        names::print(&words);
        return ExitCode::SUCCESS;
    }
    match Args::parse() {
        Args { command: Command::Doctor(doctor), .. } => doctor::run(*doctor),
        args => finish("gmm", dispatch(args)),
    }
}

fn dispatch(args: Args) -> Result<(), Failure> {
    args.form.choose();
    let command = match args.command {
        Command::Completions { shell } => {
            return completion::script(shell, Args::command(), true);
        }
        Command::Man(man) => return man.write(Args::command()),
        Command::Serve(serve) => return serve::run(*serve),
        Command::Logout(logout) => return token::logout(&logout),
        command => command,
    };
    let wait = args.wait_manager.0;
    let manager = args.manager.filter(|url| !url.is_empty());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format!("cannot start: {error}")))?;
    runtime.block_on(async {
        // `gmm login` contacts the manager with the token that it is to store, not with a stored one.
        if let Command::Login(login) = command {
            return token::login(login).await;
        }
        let client = contact::client(manager.as_deref(), wait)?;
        match command {
            Command::List(list) => list::run(&client, *list).await,
            Command::CreateRegion(create) => regions::create(&client, create).await,
            Command::GrowRegion(grow) => regions::grow(&client, grow).await,
            Command::Protect(protect) => protection::protect(&client, protect).await,
            Command::Drain(drain) => protection::drain(&client, drain).await,
            Command::MoveRegion(order) => move_region::run(&client, order).await,
            Command::LabelRegion(order) => label_region::run(&client, order).await,
            Command::SealRegion(order) => seal_region::seal(&client, order).await,
            Command::ShareRegion(order) => seal_region::share(&client, order).await,
            Command::CloneRegion(order) => clone_region::clone(&client, order).await,
            Command::Snapshot(order) => clone_region::snapshot(&client, order).await,
            Command::Relocate(relocate) => relocate::relocate(&client, relocate).await,
            Command::Rebalance(rebalance) => relocate::rebalance(&client, rebalance).await,
            Command::DestroyRegion(destroy) => lifecycle::destroy(&client, destroy).await,
            Command::DisableRegion(disable) => lifecycle::disable(&client, disable).await,
            Command::EnableRegion(enable) => lifecycle::enable(&client, enable).await,
            Command::ResetRegion(reset) => lifecycle::reset(&client, reset).await,
            Command::SetLd(set) => bindings::set_ld(&client, set).await,
            Command::Bind(bind) => bindings::bind(&client, bind).await,
            Command::Unbind(unbind) => bindings::unbind(&client, unbind).await,
            Command::SetQuota(quota) => nodes::set_quota(&client, quota).await,
            Command::Hold(hold) => nodes::hold(&client, hold).await,
            Command::Release(release) => nodes::release(&client, release).await,
            Command::Forget(forget) => nodes::forget(&client, forget).await,
            Command::AdoptFabric(adopt) => lineage::adopt(&client, adopt).await,
            Command::Backup(args) => backup::backup(&client, args).await,
            Command::Restore(args) => backup::restore(&client, args).await,
            Command::ReleaseOrphans(release) => lineage::release_orphans(&client, release).await,
            Command::Fm(fm) => fm::run(*fm).await,
            Command::Monitor(monitor) => monitor::run(&client, monitor).await,
            Command::Token(token) => token::run(&client, token).await,
            Command::Whoami => token::whoami(&client).await,
            Command::Revoke(revoke) => token::revoke(&client, revoke).await,
            Command::Status(status) => status::run(&client, status).await,
            // The code above has already carried out these subcommands.
            Command::Serve(_)
            | Command::Doctor(_)
            | Command::Login(_)
            | Command::Logout(_)
            | Command::Completions { .. }
            | Command::Man(_) => Ok(()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Args::command().debug_assert();
    }
}
