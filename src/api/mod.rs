//! The resources: types, schema rules, names, conditions. No I/O.

pub mod conditions;
pub mod crd;
pub mod game_server;
pub mod group;
pub mod names;

pub use game_server::{
    Claim, ClaimStatus, End, EndReason, GameServer, GameServerPort, GameServerSpec, GameServerStatus, Health,
    Instance, Players, Shutdown, State,
};
pub use group::{
    AddressFamily, Addressing, Agent, AgentProtocol, ClaimPolicy, DeletionPolicy, GameServerGroup,
    GameServerGroupSpec, GameServerGroupStatus, NodeAddressType, Phase, Port, PortPolicy, PortProtocol,
    Registration, ServerCounts,
};
