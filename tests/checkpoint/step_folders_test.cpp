// Folders that appear whole, the newest of them, and disks that are full.
#include "convoy/checkpoint/step_folders.h"

#include "checkpoint/folder_swap.h"
#include "convoy/checkpoint/first_rank.h"
#include "convoy/checkpoint/staged_folder.h"
#include "convoy/model_checkpoint.h"
#include "fsdp/harness.h"
#include "support/catch.h"
#include "train_gpt/scratch.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <vector>

#include <sys/resource.h>

namespace convoy {
namespace {

using namespace test;
using saving::StagedFolder;
using testing::read_whole;
using testing::Scratch;
namespace fs = std::filesystem;

void make_step(const fs::path& folder, std::int64_t step, const std::string& content) {
  StagedFolder staged(folder / saving::step_folder_name(step));
  saving::write_file_durably(staged.path() / "file", content);
  staged.commit();
}

/// Lowers the largest size of a file while it lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
};

/// A file system without the exchange of names, on which renames fail, or after which the machine
/// stops.
class OldFileSystem final : public saving::Renames {
 public:
  struct Stopped {};

  int lacks = EINVAL;
  int fail_from = 100;  ///< Renames from this one on (the first is 1) fail.
  int stop_at = 100;    ///< The machine stops in place of this one.
  mutable int renames = 0;

  int rename(const fs::path& from, const fs::path& to) const override {
    ++renames;
    if (renames >= stop_at) throw Stopped();
    return renames >= fail_from ? EIO : Renames::rename(from, to);
  }
  int exchange(const fs::path&, const fs::path&) const override { return lacks; }
};

/// A checkpoint of step 3, and one that is to take its place.
struct Replacement {
  Replacement() {
    make_step(scratch.path(), 3, "old");
    saving::set_latest(scratch.path(), 3);
    scratch.write(".step_00000003.partial/file", "new");
  }
  void run(const OldFileSystem& system) const { saving::replace_folder(staged, target, system); }
  std::string content() const {
    return read_whole(saving::find_step_folder(scratch.path()).path / "file");
  }
  /// Of what is there but `latest`.
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(scratch.path())) {
      const std::string name = entry.path().filename().native();
      if (name != "latest") found.push_back(name);
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  Scratch scratch;
  fs::path staged = scratch.path() / ".step_00000003.partial";
  fs::path target = scratch.path() / "step_00000003";
};

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("C092: a step folder is replaced by two renames only where names cannot be exchanged") {
  for (const int error : {EINVAL, ENOSYS, ENOTSUP}) {
    const Replacement replacement;
    OldFileSystem system;
    system.lacks = error;
    replacement.run(system);
    CHECK(system.renames == 2);
    CHECK(replacement.names() == Names{"step_00000003"});
    CHECK(replacement.content() == "new");
  }
  for (const int error : {EIO, EACCES, EROFS}) {
    const Replacement replacement;
    OldFileSystem system;
    system.lacks = error;
    check_throws(ErrorKind::kSystem, "step_00000003'", [&] { replacement.run(system); });
    CHECK(system.renames == 0);
    CHECK(replacement.content() == "old");
  }
}

TEST_CASE("C092: where the second rename fails the first is taken back") {
  const Replacement replacement;
  struct SecondFails final : saving::Renames {
    mutable int renames = 0;
    int rename(const fs::path& from, const fs::path& to) const override {
      return ++renames == 2 ? ENOSPC : Renames::rename(from, to);
    }
    int exchange(const fs::path&, const fs::path&) const override { return EINVAL; }
  };
  check_throws(ErrorKind::kSystem, ".step_00000003.partial'", [&] {
    saving::replace_folder(replacement.staged, replacement.target, SecondFails());
  });
  CHECK(replacement.names() == Names{".step_00000003.partial", "step_00000003"});
  CHECK(replacement.content() == "old");
}

TEST_CASE("C092: what a save was replacing when it died is found at the next start and kept") {
  const auto die = [](const Replacement& replacement, bool machine) {
    OldFileSystem system;
    (machine ? system.stop_at : system.fail_from) = 2;
    if (machine) {
      CHECK_THROWS_AS(replacement.run(system), OldFileSystem::Stopped);
    } else {
      check_throws(ErrorKind::kSystem, ".step_00000003.replaced", [&] { replacement.run(system); });
    }
    CHECK(replacement.names() == Names{".step_00000003.partial", ".step_00000003.replaced"});
    CHECK(replacement.content() == "old");  // Found by its name in `latest`,
    CHECK(saving::find_step_folder(replacement.target).step == 3);  // by its own,
    fs::rename(replacement.scratch.path() / "latest", replacement.scratch.path() / "not");
    CHECK(replacement.content() == "old");  // or as the newest.
    make_step(replacement.scratch.path(), 1, "first");
    CHECK(saving::find_step_folder(replacement.scratch.path()).step == 3);
    fs::rename(replacement.scratch.path() / "not", replacement.scratch.path() / "latest");
    fs::remove_all(replacement.scratch.path() / "step_00000001");
  };
  for (const bool machine : {true, false}) {
    const Replacement at_start;
    die(at_start, machine);
    saving::remove_partial_folders(at_start.scratch.path());
    CHECK(at_start.names() == Names{"step_00000003"});
    CHECK(at_start.content() == "old");

    const Replacement at_save;
    die(at_save, machine);
    {
      const StagedFolder dies_again(at_save.target);
      CHECK(at_save.content() == "old");
    }
    make_step(at_save.scratch.path(), 3, "newer");
    CHECK(at_save.names() == Names{"step_00000003"});
    CHECK(at_save.content() == "newer");
  }
  // Died after the second rename: the new one has its name, and the old one is in the way.
  const Replacement late;
  late.run(OldFileSystem());
  late.scratch.write(".step_00000003.replaced/file", "old");
  CHECK(late.content() == "new");
  saving::remove_partial_folders(late.scratch.path());
  CHECK(late.names() == Names{"step_00000003"});
  CHECK(late.content() == "new");
}

TEST_CASE("step folders: the newest is found by name or by number") {
  const Scratch scratch;
  const fs::path folder = scratch.path() / "run";
  CHECK(saving::step_folder_name(100) == "step_00000100");
  CHECK(saving::step_folder_name(123'456'789) == "step_123456789");
  check_throws(ErrorKind::kInvalidArgument, "no folder of checkpoints",
               [&] { (void)saving::find_step_folder(folder); });
  fs::create_directories(folder / ".step_00000009.partial");
  fs::create_directories(folder / "step_7");
  check_throws(ErrorKind::kInvalidArgument, "there is no checkpoint in",
               [&] { (void)saving::find_step_folder(folder); });
  for (const int step : {5, 20, 10}) make_step(folder, step, "x");
  CHECK(saving::find_step_folder(folder).step == 20);  // No `latest` yet.
  saving::set_latest(folder, 10);
  CHECK(read_whole(folder / "latest") == "step_00000010\n");
  CHECK(saving::find_step_folder(folder / "").path == folder / "step_00000010");
  CHECK(saving::find_step_folder(folder / "step_00000005").step == 5);
  CHECK(saving::find_step_folder(folder / "step_00000005/").step == 5);
  scratch.write("run/latest", "step_00000099\n");  // Names what is not there.
  CHECK(saving::find_step_folder(folder).step == 20);
  scratch.write("run/latest", "../../etc\n");
  CHECK(saving::find_step_folder(folder).step == 20);
  saving::remove_partial_folders(folder);
  CHECK_FALSE(fs::exists(folder / ".step_00000009.partial"));
}

TEST_CASE("C092: a staged folder shows nothing before it is whole and replaces at once") {
  const Scratch scratch;
  const fs::path target = scratch.path() / "new" / "step_00000001";
  {
    const StagedFolder left_behind(target);
    CHECK_FALSE(fs::exists(target));
    CHECK(left_behind.path().filename() == ".step_00000001.partial");
  }
  CHECK(fs::is_empty(target.parent_path()));
  fs::create_directories(scratch.path() / "new" / ".step_00000001.partial" / "old");  // A crash.
  make_step(target.parent_path(), 1, "first");
  CHECK(read_whole(target / "file") == "first");
  make_step(target.parent_path(), 1, "second");
  CHECK(read_whole(target / "file") == "second");
  CHECK(std::distance(fs::directory_iterator(target.parent_path()), {}) == 1);
}

TEST_CASE("C094: a full disk is the same error on all ranks and leaves the last checkpoint") {
  const Scratch scratch;
  std::array<std::string, 2> texts;
  ranks(2, [&](Rank& rank) {
    TinyGpt model = tiny_training().make();
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    const auto save = [&](int step) {
      std::optional<StagedFolder> staged;
      saving::on_first_rank(
          &rank.comm(), [&] { staged.emplace(scratch.path() / saving::step_folder_name(step)); });
      save_model(staged ? staged->path() / "model" : fs::path(), fsdp);
      saving::on_first_rank(&rank.comm(), [&] {
        staged->commit();
        saving::set_latest(scratch.path(), step);
      });
    };
    const StateDict before = full_state_dict(fsdp);
    save(1);
    {
      rank.comm().barrier()->wait();
      std::optional<FileSizeLimit> limit;  // Of the process, so one rank sets it.
      if (rank.rank() == 0) limit.emplace(4096);
      rank.comm().barrier()->wait();
      const Error error = check_throws(ErrorKind::kSystem, "File too large", [&] { save(2); });
      texts[static_cast<std::size_t>(rank.rank())] = error.what();
      rank.comm().barrier()->wait();
    }
    rank.comm().barrier()->wait();
    const auto last = saving::find_step_folder(scratch.path());
    check_equal(last.step, std::int64_t{1}, "the last good one");
    load_model(last.path / "model", fsdp);
    const StateDict after = full_state_dict(fsdp);
    check_same_state(after, before, "loaded");
    save(3);  // And the training goes on.
  });
  CHECK(texts[0] == texts[1]);
  CHECK(texts[0].find(".step_00000002.partial/model") != std::string::npos);
  CHECK(std::distance(fs::directory_iterator(scratch.path()), {}) == 3);  // 1, 3 and latest.
}

TEST_CASE("first rank: any exception of rank 0 is everybody's, and later work is left out") {
  ranks(3, [&](Rank& rank) {
    saving::FirstRank first(&rank.comm());
    bool ran = false;
    first.run([] { throw std::runtime_error("the third reason"); });
    first.run([&] { ran = true; });
    check_throws(ErrorKind::kSystem, "the third reason", [&] { first.agree(); });
    check(!ran, "nothing runs after a failure");
    saving::on_first_rank(&rank.comm(), [&] { ran = true; });
    check_equal(ran, rank.rank() == 0, "on rank 0 only");
  });
}

}  // namespace convoy
