"""More real grouped sets: chosen by the rule of `sets`, from tables that neither it nor `others`
uses, before any was measured. The first measurement showed a decomposition that LAPACK gave up,
which was mended. One number was chosen with their scores in view: after how many steps boosted
trees may be cut.

Of large tables some rows of every group are drawn; a few columns are made of others.
"""

from __future__ import annotations

from typing import Any

Source = tuple[str, str, str, str, tuple[str, ...]]
REGRESSIONS: dict[str, Source] = {
    "communes: medical bills": (
        "Ecdat", "VietNamH", "commune", "lnmed",
        ("sex", "age", "educyr", "farm", "urban", "hhsize", "lntotal"),
    ),
    "professors: salaries": (
        "wooldridge", "big9salary", "id", "lsalary",
        ("year", "exper", "pubindx", "totpge", "assoc", "prof", "chair", "top20phd", "female"),
    ),
    "occupations: income": (
        "stevedata", "gss_wages", "occ10", "log realrinc",
        ("year", "age", "prestg10", "childs", "wrkstat", "gender", "educcat", "maritalcat"),
    ),
    "agents: room rates": (
        "modeldata", "hotel_rates", "agent", "avg_price_per_room",
        ("lead_time", "stays_in_weekend_nights", "stays_in_week_nights", "adults", "children",
         "babies", "meal", "market_segment", "is_repeated_guest", "reserved_room_type",
         "customer_type", "required_car_parking_spaces", "total_of_special_requests",
         "arrival_date_num", "month", "near_christmas", "near_new_years", "historical_adr"),
    ),
    "makes: mileage": (
        "openintro", "epa2021", "division", "comb_mpg",
        ("engine_displacement", "no_cylinders", "air_aspir_method_desc", "transmission",
         "no_gears", "drive_sys", "fuel_usage", "class"),
    ),
    "neighbourhoods: house prices": (
        "modeldata", "ames", "Neighborhood", "log Sale_Price",
        ("log Gr_Liv_Area", "log Lot_Area", "Year_Built", "Year_Remod_Add", "Total_Bsmt_SF",
         "Full_Bath", "Half_Bath", "Bedroom_AbvGr", "Fireplaces", "Garage_Cars", "Garage_Area",
         "Overall_Cond", "Bldg_Type", "House_Style", "Heating_QC", "Central_Air",
         "Sale_Condition", "Year_Sold", "Mo_Sold", "Longitude", "Latitude"),
    ),
    "days: nitrogen oxides": (
        "robustbase", "NOxEmissions", "julday", "LNOx", ("LNOxEm", "sqrtWS"),
    ),
    "states: diseases": (
        "dslabs", "us_contagious_diseases", "state", "log1p count",
        ("disease", "year", "weeks_reporting", "log population"),
    ),
    "pollsters: Clinton": (
        "dslabs", "polls_us_election_2016", "pollster", "rawpoll_clinton",
        ("end", "days", "log samplesize", "population", "state"),
    ),
    "species: weight": (
        "ratdat", "complete", "species_id", "log weight",
        ("sex", "hindfoot_length", "month", "year", "plot_type"),
    ),
    "patients: quinidine": (
        "nlme", "Quinidine", "Subject", "log conc",
        ("time", "since", "last", "Age", "Height", "Weight", "Race", "Smoke", "Ethanol", "Heart",
         "Creatinine", "glyco"),
    ),
}  # fmt: skip
BINARIES: dict[str, Source] = {
    "women: union": (
        "sampleSelection", "nlswork", "idcode", "union",
        ("year", "age", "factor race", "msp", "nev_mar", "grade", "not_smsa", "c_city", "south",
         "factor ind_code", "factor occ_code", "ttl_exp", "tenure", "hours"),
    ),
    "schools: registered to vote": (
        "stevedata", "Dee04", "schoolid", "register",
        ("college", "hispanic", "black", "otherrace", "female", "distance"),
    ),
    "communes: pharmacy": (
        "Ecdat", "VietNamI", "commune", "visited",
        ("lnhhexp", "age", "sex", "married", "educ", "illness", "injury", "illdays", "actdays",
         "insurance"),
    ),
    "birth states: home owners": (
        "causaldata", "mortgages", "bpl", "home_ownership",
        ("qob", "nonwhite", "vet_wwko", "qob_minus_kw"),
    ),
    "states: loans": (
        "modeldata", "lending_club", "addr_state", "Class: bad",
        ("funded_amnt", "term", "int_rate", "verification_status", "log annual_inc", "emp_length",
         "delinq_2yrs", "inq_last_6mths", "revol_util", "open_il_6m", "open_il_12m", "open_il_24m",
         "log1p total_bal_il", "all_util", "inq_fi", "inq_last_12m", "num_il_tl"),
    ),
    "clinics: COVID": (
        "medicaldata", "covid_testing", "clinic_name", "result: positive",
        ("pan_day", "gender", "age", "demo_group", "drive_thru_ind", "orderset"),
    ),
    "neighbourhoods: injuries": (
        "openintro", "mn_police_use_of_force", "neighborhood", "subject_injury",
        ("is_911_call", "force_type", "race", "sex", "age", "year", "month", "hour"),
    ),
    "batters: swings": (
        "Stat2Data", "Kershaw", "Batter", "Swing",
        ("StartSpeed", "HDev", "VDev", "HPos", "VPos", "PitchType", "BallCount", "StrikeCount",
         "Inning", "Outs", "BatterHand"),
    ),
    "teams: home wins": (
        "vcd", "Bundesliga", "HomeTeam", "won", ("Year", "Round", "month", "AwayTeam"),
    ),
    "sampling units: deaths": (
        "DAAG", "nassCDS", "unit", "dead: dead",
        ("dvcat", "airbag", "seatbelt", "frontal", "sex", "ageOFocc", "yearacc", "yearVeh",
         "occRole", "deploy"),
    ),
    "patients: arthritis": (
        "multgee", "arthritis", "id", "good", ("sex", "age", "trt", "baseline", "time"),
    ),
    "interviewers: informed": (
        "pscl", "politicalInformation", "id", "high",
        ("collegeDegree", "female", "age", "homeOwn", "govt", "length"),
    ),
    "teams: tournament": (
        "wooldridge", "ncaa_rpi", "team", "tourney",
        ("year", "conference", "prerpi", "postrpi_1", "postrpi_2", "recruitrank", "coachexper"),
    ),
    "districts: Democrats": (
        "causaldata", "close_elections_lmb", "state+district", "democrat",
        ("year", "lagdemocrat", "lagdemvoteshare"),
    ),
    "sex workers: unprotected": (
        "causaldata", "adult_services", "id", "unsafe",
        ("session", "age", "age_cl", "appearance_cl", "bmi", "schooling", "provider_second",
         "asian_cl", "black_cl", "hispanic_cl", "othrace_cl", "reg", "hot", "massage_cl",
         "llength", "asian", "black", "hispanic", "other", "cohab", "married", "divorced",
         "separated", "widowed"),
    ),
}  # fmt: skip
# Rows of a group, at most, by the columns that name it.
MOST = {
    "gss_wages": (["occ10"], 30), "hotel_rates": (["agent"], 30), "epa2021": (["division"], 60),
    "ames": (["Neighborhood"], 60), "us_contagious_diseases": (["state"], 60),
    "polls_us_election_2016": (["pollster"], 30), "complete": (["species_id"], 60),
    "VietNamH": (["commune"], 30), "VietNamI": (["commune"], 30), "mortgages": (["bpl"], 60),
    "lending_club": (["addr_state"], 60), "covid_testing": (["clinic_name"], 60),
    "mn_police_use_of_force": (["neighborhood"], 60), "Bundesliga": (["HomeTeam"], 60),
    "nassCDS": (["unit"], 120),
}  # fmt: skip
WHOLE = {  # without gaps in these
    "gss_wages": ["realrinc", "occ10", "wrkstat", "prestg10"],
    "complete": ["species_id", "sex", "hindfoot_length", "weight"],
    "mn_police_use_of_force": ["subject_injury", "race", "sex", "age"],
    "arthritis": ["y"], "politicalInformation": ["y"], "adult_services": ["id"],
    "us_contagious_diseases": ["population"], "nlswork": ["union"],
}  # fmt: skip


def made(item: str, frame: Any) -> Any:
    """A table of one of these sets with the columns that are made of others."""
    import pandas as pd

    if item == "hotel_rates":
        frame = frame[frame.agent != "not_applicable"]
        frame = frame.assign(month=pd.to_datetime(frame.arrival_date).dt.month)
    elif item == "polls_us_election_2016":
        start, end = pd.to_datetime(frame.startdate), pd.to_datetime(frame.enddate)
        days = (end - start).dt.days
        frame = frame.assign(end=(end - end.min()).dt.days, days=days)
    elif item == "Quinidine":
        frame = frame.sort_values(["Subject", "time"], kind="stable")
        when = frame.time.where(frame.dose.notna()).groupby(frame.Subject).ffill()
        frame = frame.assign(since=frame.time - when, last=frame.groupby("Subject").dose.ffill())
        frame = frame.assign(glyco=frame.groupby("Subject").glyco.ffill())
        frame = frame[frame.conc.notna()]
    elif item == "VietNamI":
        frame = frame.assign(visited=(frame.pharvis > 0).astype(int))
    elif item == "covid_testing":
        frame = frame[frame.result != "invalid"]
    elif item == "mn_police_use_of_force":
        frame = frame.drop_duplicates(["response_datetime", "neighborhood", "race", "sex", "age"])
        when = pd.to_datetime(frame.response_datetime)
        frame = frame.assign(year=when.dt.year, month=when.dt.month, hour=when.dt.hour)
    elif item == "Bundesliga":
        month = pd.to_datetime(frame.Date).dt.month
        frame = frame.assign(won=(frame.HomeGoals > frame.AwayGoals).astype(int), month=month)
    elif item == "nassCDS":
        frame = frame.assign(unit=frame.caseid.str.split(":").str[0])
    elif item == "arthritis":
        frame = frame.assign(good=(frame.y >= 4).astype(int))
    elif item == "politicalInformation":
        frame = frame.assign(high=frame.y.isin(["Fairly High", "Very High"]).astype(int))
    elif item == "close_elections_lmb":
        frame = frame.drop_duplicates(["state", "district", "year"])
    elif item == "ncaa_rpi":
        frame = frame.assign(year=frame.year.str[:4].astype(int))
    return frame
