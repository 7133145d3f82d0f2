//! `gmm token`, `gmm login`, `gmm logout`, `gmm whoami` and `gmm revoke`: access to the manager.

use std::time::Duration;

use clap::{Args, Subcommand};
use cxloe_daemon::command_line::{Failure, output};
use cxloe_daemon::to_stderr;
use cxloe_fabric::Client;
use cxloe_fabric::api::{CreateToken, Owner, Party};
use cxloe_fabric::client::Credentials;
use cxloe_fabric::model::{ByteSize, CnId, Name, Role, Token};

use super::contact::Logins;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  gmm token create --role mn        for `mn-server join`
  gmm token list
  gmm token revoke 1a2b3c4d")]
pub struct TokenArgs {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Create a token and print it; it cannot be printed again
    #[command(after_help = "\
Roles:
  admin    everything
  tenant   read access; manages the regions of the compute nodes named with --cn, up to --quota
  viewer   read access
  mn, cn   lets one memory node or compute node join
  fm       lets one client of the FM API join

Examples:
  gmm token create --role mn                                       for `mn-server join`, valid for an hour
  gmm token create --role cn --ttl 10m
  gmm token create --role tenant --cn 02:00:00:00:00:01 --quota 64G
  gmm token create --role admin --ttl 12h                          for `gmm login`")]
    Create(CreateArgs),
    /// List the tokens, without their secrets
    #[command(after_help = "Example:\n  gmm token list")]
    List,
    /// Revoke tokens
    #[command(after_help = "Example:\n  gmm token revoke 1a2b3c4d")]
    Revoke {
        /// Ids of the tokens: the part between the first and the second dot
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// Rights of the bearer: admin, tenant, viewer, mn, cn or fm
    #[arg(long)]
    role: Role,
    /// Validity, as in 30m, 12h, 90d [default: 1h for mn, cn and fm, 90d for others]
    #[arg(long, value_parser = humantime::parse_duration, value_name = "TIME")]
    ttl: Option<Duration>,
    /// A compute node of the tenant, by CN id; with role cn, one that may join, and may replace the one of its name.
    /// Give it once for each
    #[arg(long, value_name = "MAC")]
    cn: Vec<CnId>,
    /// Maximum size of all regions of the tenant together
    #[arg(long, value_name = "SIZE")]
    quota: Option<ByteSize>,
}

/// Creates a token and prints it, lists the tokens, or revokes some.
///
/// # Errors
/// If the manager does not answer or refuses.
pub async fn run(client: &Client, args: TokenArgs) -> Result<(), Failure> {
    match args.command {
        TokenCommand::Create(CreateArgs { role, ttl, cn, quota }) => {
            let ttl_s = ttl.map(|ttl| ttl.as_secs().max(1));
            let created = client.create_token(&CreateToken { role, ttl_s, compute_nodes: cn, quota }).await?;
            if output::json_asked() {
                return output::print(output::value(&created)?, false);
            }
            output::line(&created.token)
        }
        TokenCommand::List => output::print(output::value(&client.tokens().await?)?, false),
        TokenCommand::Revoke { ids } => {
            for id in ids {
                client.revoke_token(&id).await?;
            }
            Ok(())
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
The token is stored in $XDG_CONFIG_HOME/cxloe/logins.json, which only this user can read. Every command of
`gmm` uses it for that manager, and that manager if no other is named. CXLOE_TOKEN in the environment takes
precedence.

Examples:
  gmm login https://gmm.lab:7440 --token cx1.…
  CXLOE_TOKEN=cx1.… gmm login https://gmm.lab:7440     does not show the token in the list of processes")]
pub struct LoginArgs {
    /// The manager: https://HOST:PORT; several that share a store, separated by commas
    url: String,
    /// The token, as `gmm token create` prints it
    #[arg(long, env = cxloe_fabric::client::TOKEN_VARIABLE, hide_env_values = true)]
    token: String,
}

/// Checks a token with the manager, and stores it for later commands if the manager accepts it.
///
/// # Errors
/// If the manager does not answer or refuses the token, or if the token cannot be stored.
pub async fn login(args: LoginArgs) -> Result<(), Failure> {
    let LoginArgs { url, token } = args;
    let token: Token = token.parse().map_err(Failure::usage)?;
    let client = Client::with(&url, Credentials::of_token(token.clone())).map_err(Failure::usage)?;
    let whoami = client.who_am_i().await?;
    let path = Logins::path();
    let mut logins = Logins::read(&path)?;
    logins.add(&url, &token);
    logins.write(&path)?;
    to_stderr!("logged in at {url} as {} ({}); kept in {}", whoami.who, whoami.role, path.display());
    Ok(())
}

#[derive(Debug, Args)]
#[command(after_help = "The token stays valid: `gmm token revoke` ends that.\n\nExample:\n  gmm logout")]
pub struct LogoutArgs {
    /// The manager [default: the one of the last log-in]
    url: Option<String>,
}

/// Removes the token that `gmm login` stored for a manager.
///
/// # Errors
/// If no token is stored for the manager.
pub fn logout(args: &LogoutArgs) -> Result<(), Failure> {
    let path = Logins::path();
    let mut logins = Logins::read(&path)?;
    let removed = logins.remove(args.url.as_deref());
    logins.write(&path)?;
    match removed {
        Some(url) => {
            to_stderr!("logged out at {url}");
            Ok(())
        }
        None => Err(Failure::failed("no log-in is kept")),
    }
}

/// Prints the caller's identity at the manager.
///
/// # Errors
/// If the manager does not answer, or does not recognise the caller.
pub async fn whoami(client: &Client) -> Result<(), Failure> {
    output::print(output::value(&client.who_am_i().await?)?, false)
}

#[derive(Debug, Args)]
#[command(after_help = "\
The manager refuses the node's certificate from now on, and the nodes it has sessions with end these. Its
memory and its regions stay. To use the node again, have it join with a new token.

Examples:
  gmm revoke mn0
  gmm revoke 02:00:00:00:00:01
  gmm revoke --fm fm0")]
pub struct RevokeArgs {
    /// The memory node by name, or the compute node by CN id
    #[arg(value_name = "NODE")]
    node: Owner,
    /// NODE is the name of an FM client
    #[arg(long)]
    fm: bool,
}

/// Has the manager refuse a node's certificate until the node joins again.
///
/// # Errors
/// If the manager does not answer or refuses.
pub async fn revoke(client: &Client, args: RevokeArgs) -> Result<(), Failure> {
    let named = |name: Name| Party::MemoryNode(name);
    let node = match args.node {
        Owner::Name(name) if args.fm => Party::FmClient(name),
        Owner::CnId(_) if args.fm => return Err(Failure::usage("an FM client is known by its name")),
        Owner::CnId(cn) => Party::ComputeNode(cn),
        Owner::Name(name) => {
            // Compute nodes are identified by their CN ids, so the name of a compute node is looked up first.
            let known = client.compute_nodes().await?;
            let known = known.into_iter().find(|node| node.name.as_ref() == Some(&name));
            known.map_or_else(|| named(name), |node| Party::ComputeNode(node.cn_id))
        }
    };
    Ok(client.revoke(&node).await?)
}
