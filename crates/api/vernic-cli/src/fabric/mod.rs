//! `vernic fabric`: a fabric in the foreground, and what others ask of it.

mod client;
mod ipoib;
mod plan;
mod show;
mod up;

use clap::{Args, Subcommand};
use std::path::PathBuf;
use vernic_fabric::manager::{Partition, Routing};

use crate::failure::Outcome;

/// What to do with a fabric.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a fabric: this process is its switches and cables until Ctrl-C
    Up(UpArguments),
    /// Show nodes, ports, LIDs, credits, queues, counters and programs
    Show {
        /// Name of the fabric
        name: String,
        /// Show this node only
        node: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Write a picture of the plan, with the load of its cables, to this file
        #[arg(long, value_name = "FILE", conflicts_with = "json")]
        svg: Option<PathBuf>,
    },
    /// Change the cable at a port: `vernic fabric link lab h1:1 down`
    Link {
        /// Name of the fabric
        name: String,
        /// Node and port, such as leaf1:3
        #[arg(value_name = "NODE:PORT")]
        end: String,
        /// What becomes of the cable: down, up, ber, rate
        change: String,
        /// Value of `ber`, the share of bits that are wrong, such as 1e-6; or of `rate`, bits per
        /// second, such as 10g or max
        value: Option<String>,
    },
    /// Plug a cable in at a free port whose other end is at a fabric that listens, maybe on another
    /// machine
    Join {
        /// Name of the fabric
        name: String,
        /// Node and port, such as spine1:9
        #[arg(value_name = "NODE:PORT")]
        end: String,
        /// Address and TCP port of the other fabric, such as host:7777
        #[arg(value_name = "HOST:TCPPORT")]
        address: String,
    },
    /// Let another fabric plug a cable in at a free port; anybody who can connect may do so
    Listen {
        /// Name of the fabric
        name: String,
        /// Node and port, such as spine1:9
        #[arg(value_name = "NODE:PORT")]
        end: String,
        /// Address and TCP port to listen at, such as 0.0.0.0:7777; a number alone is a port of
        /// this machine, 127.0.0.1
        #[arg(value_name = "[ADDRESS:]TCPPORT")]
        address: String,
    },
    /// Capture all packets to a file that tshark reads, or stop with --off
    Capture {
        /// Name of the fabric
        name: String,
        /// The file (ERF)
        #[arg(required_unless_present = "off")]
        file: Option<PathBuf>,
        /// End the capture
        #[arg(long, conflicts_with = "file")]
        off: bool,
    },
    /// End a fabric, as Ctrl-C does
    Down {
        /// Name of the fabric
        name: String,
    },
    /// Give a host an IP interface (IPoIB): a TUN device, until Ctrl-C. Takes root or `unshare -rn`
    Ipoib(ipoib::Arguments),
    /// List the fabrics that run
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// `vernic fabric up`.
#[derive(Debug, Args)]
pub(crate) struct UpArguments {
    #[command(flatten)]
    plan: PlanArguments,
    /// Name that programs call the fabric by
    #[arg(long, default_value = "lab")]
    name: String,
    /// Capture all packets to this file (ERF), which tshark reads
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Data lanes of every port: 1, 2, 4, 8 or 15
    #[arg(long, default_value_t = 8, value_parser = plan::parse_lanes)]
    lanes: u8,
    /// Longest payload of a packet in bytes: 256, 512, 1024, 2048 or 4096
    #[arg(long, default_value_t = 4096, value_parser = crate::spec::parse_mtu)]
    mtu: u32,
    /// Ports without a cable that each switch has besides, for `vernic fabric listen` and `join`
    #[arg(long, value_name = "PORTS", default_value_t = 0)]
    spare: u8,
    /// Links take the time that their width and speed say; else only those with a rate of their own
    #[arg(long)]
    paced: bool,
    /// Microseconds for which the process looks for news before it sleeps; a sleep costs the next
    /// packet some 50
    #[arg(long, value_name = "US", default_value_t = 10)]
    spin: u32,
    /// Manage the subnet, from the last host: by shortest ways (minhop), or by ways up and then
    /// down alone (updn). OpenSM at another host takes over if its priority is above 0
    #[arg(
        long,
        value_name = "ROUTING",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "minhop",
        value_parser = plan::parse_routing
    )]
    sm: Option<Routing>,
    /// Priority of the own subnet manager, 0 to 15
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        requires = "sm",
        value_parser = clap::value_parser!(u8).range(..=15)
    )]
    sm_priority: u8,
    /// LMC of the own subnet manager, 0 to 7: each port has 2 to the power of N LIDs, with ways of
    /// their own where there are several
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        requires = "sm",
        value_parser = clap::value_parser!(u8).range(..=7)
    )]
    sm_lmc: u8,
    /// Partition of the own subnet manager, such as 0x8001=h1,h2:limited; repeatable. Members are
    /// names or GUIDs of hosts, or ALL: full ones if the P_Key has its top bit, else limited ones.
    /// 0x7fff=ALL lets hosts talk in other partitions alone. 0x8001@2:128=ALL has service level 2,
    /// and a share of links of 128 where other levels have 64
    #[arg(long, value_name = "P_KEY[@SL[:WEIGHT]]=HOST,...", requires = "sm")]
    partition: Vec<Partition>,
}

/// The plan of a fabric: a file, or a shape.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct PlanArguments {
    /// Topology as `ibnetdiscover` prints it and `ibsim` reads it
    file: Option<PathBuf>,
    /// Fat tree of two levels, such as 2,4,16
    #[arg(long, value_name = "SPINES,LEAVES,HOSTS", value_parser = plan::parse_counts::<3>)]
    tree: Option<[usize; 3]>,
    /// Ring of switches, such as 4,8
    #[arg(long, value_name = "SWITCHES,HOSTS", value_parser = plan::parse_counts::<2>)]
    ring: Option<[usize; 2]>,
    /// Line of switches, such as 3,6
    #[arg(long, value_name = "SWITCHES,HOSTS", value_parser = plan::parse_counts::<2>)]
    line: Option<[usize; 2]>,
    /// One switch with so many hosts
    #[arg(long, value_name = "HOSTS")]
    single: Option<usize>,
}

/// Carries out a command.
pub(crate) fn execute(command: Command) -> Outcome<()> {
    match command {
        Command::Up(arguments) => up::up(&arguments),
        Command::Show { name, svg: Some(file), .. } => show::picture(&name, &file),
        Command::Show { name, node, json, svg: None } => show::show(&name, node.as_deref(), json),
        Command::Link { name, end, change, value } => {
            client::link(&name, &end, &change, value.as_deref())
        }
        Command::Join { name, end, address } => client::join(&name, &end, &address),
        Command::Listen { name, end, address } => client::listen(&name, &end, &address),
        Command::Capture { name, file, .. } => client::capture(&name, file),
        Command::Down { name } => client::down(&name),
        Command::Ipoib(arguments) => ipoib::run(&arguments),
        Command::List { json } => show::list(json),
    }
}
