//! Attempts to join from another machine of the same network segment.

use std::process::Output;

use cxloe_system::outcome::{Outcome, ensure};

use super::{Doors, refused};

fn join(doors: &Doors, name: &str, token: Option<&str>) -> Outcome<Output> {
    let mut words = doors.join_words(name);
    words.push("--no-start".to_owned());
    doors.neighbour("mn-server", token, &words.iter().map(String::as_str).collect::<Vec<_>>())
}

pub fn a_neighbour_comes_in_with_a_valid_token_only() -> Outcome {
    let doors = Doors::new()?;
    let nodes = || doors.gmm(&["list", "-E", "--json"]);
    refused(&join(&doors, "mn0", None)?, "no token was given")?;
    refused(&join(&doors, "mn0", Some("cx1.no"))?, "this is not a token")?;

    let foreign = doors.foreign_token()?;
    refused(&join(&doors, "mn0", Some(&foreign))?, "is the one to trust")?;
    // This token combines the secret of the other manager's token with the fingerprint of this manager. The client
    // accepts this manager, but the manager rejects the secret.
    let own = doors.token(&["--role", "mn"])?;
    let parts: Vec<&str> = foreign.split('.').collect();
    let mixed = format!("cx1.{}.{}.{}", parts[1], parts[2], own.rsplit('.').next().unwrap_or_default());
    refused(&join(&doors, "mn0", Some(&mixed))?, "its token is invalid")?;
    // This token combines the id of a valid token with the secret of another token.
    let guessed = format!(
        "cx1.{}.{}.{}",
        own.split('.').nth(1).unwrap_or_default(),
        parts[2],
        own.rsplit('.').next().unwrap_or_default()
    );
    refused(&join(&doors, "mn0", Some(&guessed))?, "its token is invalid")?;

    let brief = doors.token(&["--role", "mn", "--ttl", "1s"])?;
    // The wait exceeds the validity of the token.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    refused(&join(&doors, "mn0", Some(&brief))?, "has ended")?;
    let for_a_compute_node = doors.token(&["--role", "cn"])?;
    refused(&join(&doors, "mn0", Some(&for_a_compute_node))?, "of role cn")?;
    let person = doors.token(&["--role", "viewer"])?;
    refused(&join(&doors, "mn0", Some(&person))?, "role mn, cn or fm")?;
    ensure(!nodes()?.contains("memory_node_joined"), "somebody came in")?;

    let joined = join(&doors, "mn0", Some(&own))?;
    ensure(joined.status.success(), String::from_utf8_lossy(&joined.stderr).into_owned())?;
    refused(&join(&doors, "mn1", Some(&own))?, "belongs to memory node mn0")?;
    // Without its data folder, the node joins as another machine would that uses the name mn0.
    std::fs::remove_dir_all(doors.path("mn0.data"))?;
    let fresh = doors.token(&["--role", "mn"])?;
    refused(&join(&doors, "mn0", Some(&fresh))?, "another machine has joined as it")?;
    doors.gmm(&["revoke", "mn0"])?;
    refused(&join(&doors, "mn1", Some(&own))?, "used up")
}

pub fn a_viewer_changes_nothing() -> Outcome {
    let doors = Doors::new()?;
    doors.join_mn()?;
    doors.join_cn()?;
    doors.gmm(&["create-region", "-s", "8M", "--owner", "cn0", "scratch"])?;
    doors.works("scratch", 1)?;
    let viewer = doors.token(&["--role", "viewer"])?;
    let url = doors.url.clone();
    let gmm = |token: Option<&str>, words: &[&str]| {
        doors.neighbour("gmm", token, &[&["--manager", &url], words].concat())
    };
    let listed = gmm(Some(&viewer), &["list", "-R", "--json"])?;
    ensure(String::from_utf8_lossy(&listed.stdout).contains("scratch"), "a viewer looks")?;
    let changes: [&[&str]; 9] = [
        &["destroy-region", "--force", "scratch"],
        &["create-region", "-s", "8M", "--owner", "cn0", "more"],
        &["grow-region", "scratch", "-s", "+2M"],
        &["disable-region", "scratch"],
        &["set-quota", "cn0", "1G"],
        &["hold", "cn0"],
        &["forget", "--force", "mn0"],
        &["revoke", "mn0"],
        &["token", "create", "--role", "admin"],
    ];
    for words in changes {
        let tried = gmm(Some(&viewer), words)?;
        refused(&tried, "(viewer) may not do this")?;
        ensure(tried.status.code() == Some(5), format!("{words:?}: {}", tried.status))?;
        refused(&gmm(None, words)?, "which authority to trust")?;
    }
    doors.works("scratch", 2)
}
